//! [`LogAxis`]: a logarithmic axis with its ticks.

/// Most ticks at values.
const VALUES_MAX: usize = 7;

/// A logarithmic axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LogAxis {
    low: f64,
    high: f64,
    /// Where lines and numbers stand.
    pub(super) ticks: Vec<f64>,
}

impl LogAxis {
    /// From the smallest to the largest of some positive values, with ticks at them, thinned out when
    /// they are many.
    pub(super) fn of_values(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        values.dedup();
        let (low, high) = (
            values.first().copied().unwrap_or(1.0),
            values.last().copied().unwrap_or(1.0),
        );
        let step = values.len().div_ceil(VALUES_MAX).max(1);
        let ticks = values.into_iter().rev().step_by(step).collect();
        Self { low, high, ticks }
    }

    /// Around positive values, from round number to round number.
    pub(super) fn of_range(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values.fold((f64::MAX, 0.0_f64), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let wide = high / low > 50.0;
        let steps: &[f64] = if wide { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let first = low.log10().floor() as i32;
        let last = high.log10().ceil() as i32;
        let all: Vec<f64> = (first..=last)
            .flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)))
            .collect();
        let below = all
            .iter()
            .rposition(|tick| *tick <= low * 0.97)
            .unwrap_or(0);
        let above = all.iter().position(|tick| *tick >= high * 1.03);
        let above = above.unwrap_or(all.len() - 1);
        let ticks = all[below..=above].to_vec();
        Self {
            low: ticks[0].min(low),
            high: ticks[ticks.len() - 1].max(high),
            ticks,
        }
    }

    /// Where a value lies, from 0 to 1; the middle when there is one value only.
    pub(super) fn place(&self, value: f64) -> f64 {
        if self.high <= self.low {
            return 0.5;
        }
        (value / self.low).ln() / (self.high / self.low).ln()
    }
}

/// A tick as people write it.
pub(super) fn number(value: f64) -> String {
    if value >= 1.0 {
        let digits = format!("{value:.0}");
        let mut text = String::new();
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        return text;
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_begin_and_end_at_round_numbers() {
        let ticks = |values: &[f64]| LogAxis::of_range(values.iter().copied()).ticks;
        assert_eq!(ticks(&[3.0, 700.0]), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(ticks(&[3.0, 7.0]), [2.0, 5.0, 10.0]);
        assert_eq!(ticks(&[4.0]), [2.0, 5.0]);
        let axis = LogAxis::of_range([1.0, 1000.0].into_iter());
        for value in [1.0, 30.0, 1000.0] {
            assert!((0.0..=1.0).contains(&axis.place(value)), "{axis:?} {value}");
        }
    }

    #[test]
    fn values_are_ticks_and_few() {
        let axis = LogAxis::of_values(vec![8.0, 2.0, 4.0, 2.0]);
        assert_eq!(axis.ticks, [8.0, 4.0, 2.0]);
        assert_eq!(
            (axis.place(2.0), axis.place(4.0), axis.place(8.0)),
            (0.0, 0.5, 1.0)
        );
        let many = LogAxis::of_values((0..20).map(f64::from).map(f64::exp2).collect());
        assert!(many.ticks.len() <= VALUES_MAX, "{many:?}");
        assert_eq!(LogAxis::of_values(vec![3.0]).place(3.0), 0.5);
    }

    #[test]
    fn numbers_are_short() {
        let shown = [1_000_000.0, 1000.0, 20.0, 0.5, 0.001].map(number);
        assert_eq!(shown, ["1,000,000", "1,000", "20", "0.5", "0.001"]);
    }
}
