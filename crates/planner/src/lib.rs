//! Forecasts of time, memory and cost of a training run for every layout, and advice which layout to take.
//!
//! Everything here is pure: measured costs and described machines are arguments, so there is no clock, no socket and no
//! tensor. [`layout_choices`] lists the layouts that a cluster allows, [`forecast()`] interprets the step program of one of
//! them, [`ScalingCurve`] does so for up to thousands of ranks, and [`RunForecast`] compares the layouts and gives the
//! [`Advice`]. Read [`mod@forecast`] first.

#![forbid(unsafe_code)]

pub mod advice;
pub mod candidate;
pub mod choice;
pub mod cluster;
pub mod collective_times;
pub mod costs;
mod error;
pub mod forecast;
pub mod other_exchanges;
pub mod plot;
mod rank_hosts;
pub mod report;
pub mod run_forecast;
mod run_request;
pub mod scaling;
pub mod step_bytes;
mod step_request;

pub use advice::{Advice, BatchSettings, RateRule};
pub use candidate::{BucketShape, LayoutCandidate, RegionShape};
pub use choice::{ChoiceLimits, LayoutChoice, layout_choices};
pub use cluster::{ClusterShape, HostLink, parse_bytes, parse_link, parse_price};
pub use collective_times::CollectiveTimes;
pub use costs::{LayerCosts, LinkCosts, ModelCosts, PassCosts, WorkerCosts};
pub use error::AdviseError;
pub use forecast::{LayoutForecast, forecast};
pub use other_exchanges::ExchangeForecast;
pub use plot::efficiency_svg;
pub use report::{json, table};
pub use run_forecast::RunForecast;
pub use run_request::CodecCosts;
pub use run_request::RunLength;
pub use run_request::RunRequest;
pub use scaling::{ScalingCurve, ScalingPoint};
pub use step_bytes::{RankBytes, SentBytes, step_bytes};
pub use step_request::StepRequest;
