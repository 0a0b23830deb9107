//! [`InUnitsOfData`]: an error of values that is shown in the units of the data.

use std::sync::Arc;

use ronde_engine::{EngineError, Metric, Predictions};

/// A metric that is proportional to the values, multiplied by the divisor of the target values.
pub(crate) struct InUnitsOfData {
    metric: Arc<dyn Metric>,
    divisor: f64,
}

impl InUnitsOfData {
    /// Returns a metric of values that were divided by `divisor`.
    pub(crate) fn of(metric: Arc<dyn Metric>, divisor: Option<f32>) -> Arc<dyn Metric> {
        match divisor {
            None => metric,
            Some(divisor) => Arc::new(Self {
                metric,
                divisor: f64::from(divisor.abs()),
            }),
        }
    }
}

impl Metric for InUnitsOfData {
    fn name(&self) -> &str {
        self.metric.name()
    }

    fn is_lower_better(&self) -> bool {
        self.metric.is_lower_better()
    }

    fn sums(&self) -> usize {
        self.metric.sums()
    }

    fn add(
        &self,
        predictions: &Predictions<'_>,
        loss_sum: f64,
        sums: &mut [f64],
    ) -> Result<(), EngineError> {
        self.metric.add(predictions, loss_sum, sums)
    }

    fn value(&self, sums: &[f64]) -> f64 {
        self.divisor * self.metric.value(sums)
    }
}

#[cfg(test)]
mod tests {
    use ronde_engine::MeanAbsoluteError;

    use super::*;

    #[test]
    fn an_error_is_multiplied_by_the_divisor() {
        let targets = [1.0_f32, 2.0].map(f32::to_bits);
        let outputs = [1.5, 1.0];
        let predictions = Predictions::new(&outputs, &targets, 2).unwrap();
        for (divisor, expected) in [(None, 0.75), (Some(100.0), 75.0), (Some(-2.0), 1.5)] {
            let metric = InUnitsOfData::of(Arc::new(MeanAbsoluteError), divisor);
            let mut sums = vec![0.0; metric.sums()];
            metric.add(&predictions, 0.0, &mut sums).unwrap();
            assert_eq!(metric.value(&sums), expected);
            assert!(metric.is_lower_better());
        }
    }
}
