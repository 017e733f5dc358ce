"""Objects of the API that pods here refer to, kept at hand while a pod uses them."""
