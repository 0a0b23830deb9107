//! The decisions of a round of decentralised training, without I/O, numbers of a model or a clock.
//!
//! A round has a fixed number of updates: the gradients of its batches. Every rank has a replica of the model, to which it applies the
//! updates that it computes. After some of them it averages its replica with that of one partner ([`Pairings`]), whatever the other
//! ranks do at that time. No rank is special: each one owns every `n`-th update and grants those that it has not begun to ranks that
//! have finished theirs ([`UpdateClaims`]).
//!
//! ```text
//! rank -> partner: exchange with its weights  <- their mean with the partner's | declined        (ExchangeBook)
//! rank -> owner:   ask for an update          <- the number of an update | nothing left          (UpdateClaims)
//! rank -> all:     leave, when all owners have nothing left
//! ```
//!
//! An update counts if a rank that is there at the end of the round has applied it ([`UpdateLog`]). After a failure the members report
//! their logs, and [`GossipStart`] decides which replicas continue: an update that no replica has is computed again.
//!
//! Sources: Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018 (pairwise averaging while
//! gradients are computed); Boyd et al., "Randomized gossip algorithms", IEEE Transactions on Information Theory 52 (2006).
//!
//! A death costs the updates of one replica, and nothing is rolled back. To count the updates that other replicas have received by
//! averaging would need the samples of all updates in each exchange, and would count updates that have almost no effect left. To
//! repeat the round would be exact, and costs the work of all. A rank that waits for an answer declines other exchanges: no circle
//! of ranks can wait, and a mean has the same bits at both ends.

mod exchange_book;
mod pairings;
mod start;
mod update_claims;
mod update_log;

pub use exchange_book::{ExchangeBook, ExchangeVerdict, PairExchange};
pub use pairings::Pairings;
pub use start::{GossipStart, ReplicaHolding};
pub use update_claims::{NextUpdate, UpdateClaims, WorkerProgress};
pub use update_log::{GossipRound, LoggedUpdate, MergeProblem, UpdateLog, merge_updates};
