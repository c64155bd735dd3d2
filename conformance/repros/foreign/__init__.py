"""One case for each fault of somebody else's library; ``conformance.repros.script`` makes a standalone script of it."""
