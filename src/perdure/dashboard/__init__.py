"""The dashboard: pages for people. The process that serves the HTTP API serves them too (docs/dashboard.md).

Each page is a module in `pages`, with a template of the same name and a line in the list of pages. Some pages also have
a script of the same name. Pages use only the client and the views. The dashboard needs the extra `http`.
"""

from __future__ import annotations

from perdure.dashboard.oidc import Oidc
from perdure.dashboard.site import Dashboard, dashboard

__all__ = ["Dashboard", "Oidc", "dashboard"]
