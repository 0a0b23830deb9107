//! Commands that use saved models.

pub(crate) mod evaluate;
pub(crate) mod export;
pub(crate) mod model_data;
pub(crate) mod model_names;
pub(crate) mod predict;
pub(crate) mod serve;
