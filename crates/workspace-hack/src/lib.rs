//! An empty library: its dependencies unify features for the workspace, as `Cargo.toml` of this crate explains.
