//! [`PlotAxis`]: a range of values with round ticks, linear or logarithmic.

/// A logarithmic axis is used for positive values whose largest is at least this many times the smallest.
const LOGARITHMIC_FROM: f64 = 50.0;

/// A range of values that is mapped to 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlotAxis {
    from: f64,
    to: f64,
    is_logarithmic: bool,
    /// The values of the ticks, ascending.
    pub(super) ticks: Vec<f64>,
}

impl PlotAxis {
    /// Returns an axis from 0 to `to`, which is more than 0, with up to about `ticks` ticks.
    pub(super) fn from_zero(to: f64, ticks: usize) -> Self {
        let step = round_step(to / ticks as f64).max(1.0);
        Self {
            from: 0.0,
            to,
            is_logarithmic: false,
            ticks: multiples(0.0, to, step),
        }
    }

    /// Returns an axis for finite values, whose ends are ticks unless it is logarithmic; `None` without values.
    pub(super) fn of(values: impl Iterator<Item = f64>, ticks: usize) -> Option<Self> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            (low, high) = (low.min(value), high.max(value));
        }
        if !(high - low).is_finite() {
            return None;
        }
        if low > 0.0 && high / low >= LOGARITHMIC_FROM {
            return Some(Self::logarithmic(low, high, ticks));
        }
        if high - low <= 1e-9 * high.abs().max(1e-300) {
            let margin = high.abs().max(1e-6) / 10.0;
            (low, high) = (low - margin, high + margin);
        }
        let step = round_step((high - low) / ticks as f64);
        let (from, to) = ((low / step).floor() * step, (high / step).ceil() * step);
        Some(Self {
            from,
            to,
            is_logarithmic: false,
            ticks: multiples(from, to, step),
        })
    }

    fn logarithmic(low: f64, high: f64, ticks: usize) -> Self {
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let every = ((last - first) as usize).div_ceil(ticks.max(1)).max(1);
        let factors: &[f64] = match last - first {
            0..=2 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let exponents = (first..=last).step_by(every);
        let values = exponents.flat_map(|exponent| {
            factors
                .iter()
                .map(move |factor| factor * 10_f64.powi(exponent))
        });
        let (from, to) = (low / 1.15, high * 1.15);
        Self {
            from,
            to,
            is_logarithmic: true,
            ticks: values.filter(|value| (from..=to).contains(value)).collect(),
        }
    }

    /// Returns the position of a value, 0 at the beginning and 1 at the end of the axis.
    pub(super) fn position(&self, value: f64) -> f64 {
        let position = match self.is_logarithmic {
            true => (value / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        position.clamp(0.0, 1.0)
    }
}

/// Returns the smallest of 1, 2 or 5 times a power of ten that is not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.max(1e-300).log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0].into_iter();
    let mut steps = factors.map(|factor| factor * power);
    steps
        .find(|&step| step >= least * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

fn multiples(from: f64, to: f64, step: f64) -> Vec<f64> {
    let number = ((to - from) / step + 1e-6).floor() as usize;
    (0..=number.min(100))
        .map(|n| from + step * n as f64)
        .collect()
}

/// Returns the text of a tick, with separators between thousands and no more digits than it needs.
pub(super) fn label(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 || size < 1e-12 {
        return "0".to_owned();
    }
    if !(1e-4..1e7).contains(&size) {
        return format!("{value:.0e}");
    }
    if size >= 1_000.0 {
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("{sign}{}", crate::render::count(size.round() as u64));
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        for (values, expected) in [
            (vec![0.13, 2.31], vec!["0", "0.5", "1", "1.5", "2", "2.5"]),
            (
                vec![5.0, 5.0],
                vec!["4.4", "4.6", "4.8", "5", "5.2", "5.4", "5.6"],
            ),
            (vec![0.001, 2.3], vec!["0.001", "0.01", "0.1", "1"]),
            (vec![-3.0, 4.0], vec!["-4", "-2", "0", "2", "4"]),
        ] {
            let axis = PlotAxis::of(values.into_iter(), 5).unwrap();
            let labels: Vec<String> = axis.ticks.iter().map(|&tick| label(tick)).collect();
            assert_eq!(labels, expected);
            assert!(
                axis.ticks
                    .iter()
                    .all(|&tick| (0.0..=1.0).contains(&axis.position(tick)))
            );
        }
        assert_eq!(PlotAxis::of(std::iter::empty(), 5), None);
        assert_eq!(label(12_345.0), "12,345");
    }

    #[test]
    fn extreme_values_give_a_bounded_number_of_ticks() {
        for values in [
            [1e-300, 1e300],
            [0.0, 1e300],
            [1e15, 1e15 + 1.0],
            [0.0, 5e-324],
        ] {
            let axis = PlotAxis::of(values.into_iter(), 5);
            assert!(
                axis.is_none_or(|axis| axis.ticks.len() <= 101),
                "{values:?}"
            );
        }
        assert!(PlotAxis::from_zero(1.0, 6).ticks.len() == 2);
    }
}
