"""How costs grow: series of points from records (``costs``), the law that fits each (``laws``), and the tables.

Every series has an expected law beside the fitted one, so that growth which is not as it should be is seen.
"""
