//! Checkpoints of a run: when they are saved, by whom, and how a run goes on from one.
//!
//! ```text
//! rank 0 wishes for one with its vote -> after that step each rank copies its share, a thread writes it
//!   -> each rank's next votes carry what it wrote -> rank 0 publishes the manifest, then old ones go
//! a run that starts without a state: rank 0 loads the last good one, the others take it over from it
//! ```
//!
//! Nothing here waits while training goes on but the copy in memory. What ranks tell each other travels
//! with the votes on steps, so all know the same of a save under way, and a lost peer ends it.

mod access;
mod cursor;
mod keeper;
mod load;
mod newest;
mod saving;
mod shape;
mod together;
mod words;

pub use access::{Resume, Surroundings, open};
pub use newest::{Newest, newest};
pub use saving::Saving;

pub(crate) use load::{Loaded, load};
pub(crate) use saving::{Now, Snapshot};
pub(crate) use shape::Shape;
pub(crate) use together::{pace, together};
