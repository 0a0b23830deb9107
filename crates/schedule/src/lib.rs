//! Collectives and training steps as data, their interpreters and their cost.
//!
//! A collective is a pure function (algorithm, group rank, size, element counts) -> [`Schedule`]: for
//! one rank, rounds of concurrent transfers followed by local actions. [`interpret()`] runs all ranks
//! on real data in one thread, which verifies the result and the absence of deadlocks;
//! [`Schedule::cost`] counts messages and bytes. Read [`Schedule`] first, then one of [`ring`],
//! [`direct`], [`halving_doubling`]. [`step_program`] and [`timeline()`] do the same for the steps of pipelines.

#![forbid(unsafe_code)]

pub mod algorithm;
pub mod barrier;
pub mod blocks;
pub mod broadcast;
pub mod choose;
pub mod contributions;
pub mod corrections;
pub mod cost_model;
pub mod cost_page;
mod cost_sample;
pub mod counts;
pub mod direct;
pub mod driver;
mod error;
pub mod exchange;
pub mod halving_doubling;
pub mod hierarchical;
pub mod hosts;
pub mod interpret;
mod least_squares;
pub mod make;
mod pipeline_order;
pub mod ring;
pub mod rooted;
pub mod schedule;
pub mod slices;
pub mod step_program;
pub mod timeline;
pub mod tree;

pub use algorithm::Algorithm;
pub use barrier::barrier;
pub use broadcast::broadcast;
pub use choose::{Decision, choose, choose_on};
pub use corrections::{CORRECTED_BYTES, Corrections, Timing};
pub use cost_model::{COST_WORDS, CostModel};
pub use cost_page::cost_page;
pub use cost_sample::CostSample;
pub use counts::Counts;
pub use error::ScheduleError;
pub use exchange::{all_gather, all_to_all, all_to_all_unequal, reduce_scatter};
pub use hosts::Hosts;
pub use interpret::interpret;
pub use make::{
    all_reduce, all_reduce_on, broadcast_by, exact_sum, exact_sum_on, exact_sum_scatter, reduce,
};
pub use rooted::{gather, scatter};
pub use schedule::{Cost, LocalAction, Region, Round, Schedule, Transfer};
pub use step_program::{
    Border, PipelineSchedule, ProgramAction, ProgramShape, ShardOrder, StageShape, programs, runs,
};
pub use timeline::{BorderCost, BucketCost, RankWork, StepCosts, StepTimeline, timeline};
