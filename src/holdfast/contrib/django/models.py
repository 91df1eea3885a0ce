"""No models: the jobs have tables of their own. Django tells only applications with this module that it migrated."""
