"""No models: jobs have their own tables. Django sends `post_migrate` only to applications with this module."""
