"""A judged history in the forms that other tools read."""

from .views import VIEWS
from .write import FORMS, export, export_all, machine_of

__all__ = ["FORMS", "VIEWS", "export", "export_all", "machine_of"]
