//! The decisions of a round of asynchronous training with parameter servers, without I/O, numbers or a clock.
//!
//! A round has a fixed number of updates: the gradients of its batches. Servers hold the state in slots, each a contiguous part of
//! it. A worker leases an update ([`UpdateLeases`]), fetches all slots, computes the gradient, and pushes a part of it to each slot.
//! Each slot applies each update once ([`SlotLog`]), in the order of arrival. The server of slot 0 leads: it has the leases, and
//! receives each push last, with the samples of the update. So an update that slot 0 has applied is applied by all slots.
//!
//! ```text
//! worker    -> lead: request          <- the number of an update
//!           -> each slot: pull        <- its version and its values
//!           -> each slot: push        <- applied | repeated | refused; slot 0 last
//! slot      -> its copy: each update that it has applied, in order
//! ```
//!
//! A lease only avoids work that is done twice. That every update counts once follows from the logs: a late, repeated or foreign
//! push changes nothing. After a failure the members report the slots and copies that they have, and [`RoundPlacement`] decides
//! who continues: an update that some slot has not applied is computed again, and the others refuse it as a repetition.

mod placement;
mod slot_log;
mod update_leases;

pub use placement::{PlacementSettings, RoundPlacement, SlotHolding, SlotPlace};
pub use slot_log::{PushHeader, PushProblem, PushVerdict, ServedRound, SlotLog, UpdateSamples};
pub use update_leases::{LeaseAnswer, LeaseSettings, UpdateLeases};
