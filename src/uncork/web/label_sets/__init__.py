"""Label audits among the pages and in the API."""
