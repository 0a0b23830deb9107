//! [`ScalingCurve`]: the efficiency of one shape of layout on up to thousands of simulated workers.

use serde::Serialize;

use crate::candidate::LayoutCandidate;
use crate::choice::LayoutChoice;
use crate::cluster::ClusterShape;
use crate::error::AdviseError;
use crate::forecast;
use crate::step_request::StepRequest;

/// The efficiency with a number of workers, from 0 to 1: the seconds of one worker for the same step, divided by those of all
/// workers together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ScalingPoint {
    /// The number of workers.
    pub workers: u32,
    /// With the batch of the run; `None` above the number of workers that its logical shards allow.
    pub same_batch: Option<f64>,
    /// With as many shards for each worker as the best layout has, so that the batch grows with the workers.
    pub growing_batch: f64,
}

/// The efficiency of one shape of layout over the number of workers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScalingCurve {
    /// The shape: all numbers of workers have its pipeline, schedule, level of `parallel.zero` and copies.
    pub shape: LayoutChoice,
    /// The points in ascending order of workers.
    pub points: Vec<ScalingPoint>,
}

impl ScalingCurve {
    /// Simulates a shape with 1, 2, 4 and so on times its pipeline, up to `workers_max` workers, on as many hosts as they need.
    /// `build` returns the layout of a choice with a number of logical shards. Cost: interprets two steps for each point.
    ///
    /// # Errors
    /// A layout that is not consistent: a bug.
    pub fn simulate(
        shape: LayoutChoice,
        (shards, workers_max): (u32, u32),
        request: &StepRequest<'_>,
        build: &mut dyn FnMut(&LayoutChoice, u32) -> Option<LayoutCandidate>,
    ) -> Result<Self, AdviseError> {
        let per_pipeline = shards.div_ceil(shape.data).max(1);
        let of_host = request.cluster.workers_per_host(request.threads)?;
        let mut step_s = |choice: &LayoutChoice, shards: u32| {
            let Some(candidate) = build(choice, shards) else {
                return Ok(None);
            };
            let cluster = ClusterShape {
                hosts: choice.workers().div_ceil(of_host),
                ..request.cluster
            };
            let request = StepRequest {
                cluster,
                ..request.clone()
            };
            forecast(&candidate, &request).map(|found| Some(found.step_s))
        };
        // The time of one worker is linear in its shards.
        let few = step_s(&LayoutChoice::ONE, shards)?.unwrap_or(0.0);
        let twice = shards.saturating_mul(2);
        let more = step_s(&LayoutChoice::ONE, twice)?.unwrap_or(few);
        let one_s = |of: u32| {
            few + (more - few) * (f64::from(of) - f64::from(shards)) / f64::from(shards.max(1))
        };
        let mut points = Vec::new();
        let numbers = std::iter::successors(Some(1_u32), |data| data.checked_mul(2));
        for data in
            numbers.take_while(|data| data.saturating_mul(shape.model_workers()) <= workers_max)
        {
            let choice = with_data(shape, data);
            let workers = choice.workers();
            let efficiency =
                |seconds: f64, shards: u32| one_s(shards) / (f64::from(workers) * seconds);
            let allows = data <= shards && (shape.pipeline == 1 || shards / data >= shape.pipeline);
            let same = if allows {
                step_s(&choice, shards)?
            } else {
                None
            };
            let grown = per_pipeline.saturating_mul(data);
            let Some(growing) = step_s(&choice, grown)? else {
                break;
            };
            points.push(ScalingPoint {
                workers,
                same_batch: same.map(|seconds| efficiency(seconds, shards)),
                growing_batch: efficiency(growing, grown),
            });
        }
        Ok(Self { shape, points })
    }
}

/// Returns the same shape with another number of workers with the same layers.
fn with_data(shape: LayoutChoice, data: u32) -> LayoutChoice {
    let zero = if data > 1 { shape.zero } else { 0 };
    let mut choice = LayoutChoice {
        data,
        zero,
        ..shape
    };
    if !choice.is_held_once() {
        choice.copies = 1;
    }
    choice
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::HostLink;
    use crate::forecast::tests::{candidate, cluster, with_request, worker};

    #[test]
    fn thousands_of_workers_are_simulated() {
        let slow = ClusterShape {
            link: HostLink {
                bytes_per_s: 1e7,
                latency_s: 1e-3,
            },
            ..cluster(1, 8)
        };
        let shape = LayoutChoice {
            data: 8,
            ..LayoutChoice::ONE
        };
        let worker = worker(4);
        let curve = with_request(&worker, slow, |request| {
            let mut build = |choice: &LayoutChoice, shards| Some(candidate(*choice, 4, shards));
            ScalingCurve::simulate(shape, (16, 4096), request, &mut build).unwrap()
        });
        let workers: Vec<u32> = curve.points.iter().map(|point| point.workers).collect();
        assert_eq!((workers[0], workers.len(), workers[12]), (1, 13, 4096));
        assert!((curve.points[0].growing_batch - 1.0).abs() < 1e-9);
        assert!((curve.points[0].same_batch.unwrap() - 1.0).abs() < 1e-9);
        assert!(curve.points[4].same_batch.is_some() && curve.points[5].same_batch.is_none());
        for point in &curve.points {
            assert!(
                point.growing_batch > 0.0 && point.growing_batch <= 1.0 + 1e-9,
                "{point:?}"
            );
        }
        // Between hosts it is slower.
        assert!(curve.points[5].growing_batch < curve.points[3].growing_batch);
    }
}
