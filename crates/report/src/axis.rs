//! [`ChartAxis`]: a range of values with labelled ticks.

/// Positive values have a logarithmic axis if the largest is at least this many times the smallest.
const LOGARITHMIC_FROM: f64 = 50.0;
/// The maximum number of names beside an axis, and the maximum number of characters of each.
const NAMES_MAX: usize = 8;
const NAME_CHARACTERS_MAX: usize = 14;

/// How an axis is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Equal distances are equal differences.
    Linear,
    /// Equal distances are equal ratios. Ranges that reach 0 are linear.
    Logarithmic,
    /// Logarithmic for positive values that differ much.
    Automatic,
}

/// A range of values that is mapped to 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartAxis {
    from: f64,
    to: f64,
    is_logarithmic: bool,
    /// The values of the ticks, ascending, and their labels.
    pub ticks: Vec<(f64, String)>,
}

impl ChartAxis {
    /// Returns an axis without ticks between two values. A logarithmic one is between positive values.
    #[must_use]
    pub fn between(from: f64, to: f64, scale: Scale) -> Self {
        Self {
            from,
            to,
            is_logarithmic: scale == Scale::Logarithmic,
            ticks: Vec::new(),
        }
    }

    /// Returns the axis with these ticks, which ascend.
    #[must_use]
    pub fn with_ticks(mut self, ticks: impl IntoIterator<Item = (f64, String)>) -> Self {
        self.ticks = ticks.into_iter().collect();
        self
    }

    /// Returns the axis with ticks at these values.
    fn ticks_at(self, values: impl IntoIterator<Item = f64>) -> Self {
        self.with_ticks(values.into_iter().map(|value| (value, tick_label(value))))
    }

    /// Returns an axis from 0 to `to`, which is more than 0, with up to about `ticks` ticks, at whole numbers.
    #[must_use]
    pub fn from_zero(to: f64, ticks: usize) -> Self {
        let step = round_step(to / ticks as f64).max(1.0);
        Self::between(0.0, to, Scale::Linear).ticks_at(multiples(0.0, to, step))
    }

    /// Returns an axis with a position for each name: its index. Many names have no labels.
    #[must_use]
    pub fn named(names: &[impl AsRef<str>]) -> Self {
        let short = |name: &str| name.chars().take(NAME_CHARACTERS_MAX).collect();
        let labels = names
            .iter()
            .enumerate()
            .filter(|_| names.len() <= NAMES_MAX);
        Self::between(-0.5, names.len() as f64 - 0.5, Scale::Linear)
            .with_ticks(labels.map(|(index, name)| (index as f64, short(name.as_ref()))))
    }

    /// Returns an axis for finite values with up to about `ticks` ticks; its ends are ticks unless it is logarithmic. `None`
    /// without values.
    #[must_use]
    pub fn of(values: impl Iterator<Item = f64>, scale: Scale, ticks: usize) -> Option<Self> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            (low, high) = (low.min(value), high.max(value));
        }
        if !(high - low).is_finite() {
            return None;
        }
        let is_logarithmic = match scale {
            Scale::Linear => false,
            Scale::Logarithmic => low > 0.0,
            Scale::Automatic => low > 0.0 && high / low >= LOGARITHMIC_FROM,
        };
        if is_logarithmic {
            return Some(Self::logarithmic(low, high, ticks));
        }
        if high - low <= 1e-9 * high.abs().max(1e-300) {
            let margin = high.abs().max(1e-6) / 10.0;
            (low, high) = (low - margin, high + margin);
        }
        let step = round_step((high - low) / ticks as f64);
        let (from, to) = ((low / step).floor() * step, (high / step).ceil() * step);
        Some(Self::between(from, to, Scale::Linear).ticks_at(multiples(from, to, step)))
    }

    fn logarithmic(low: f64, high: f64, ticks: usize) -> Self {
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let every = ((last - first) as usize).div_ceil(ticks.max(1)).max(1);
        let factors: &[f64] = match 3 * (last - first) as usize <= ticks + 2 {
            true => &[1.0, 2.0, 5.0],
            false => &[1.0],
        };
        let exponents = (first..=last).step_by(every);
        let values = exponents.flat_map(|exponent| {
            factors
                .iter()
                .map(move |factor| factor * 10_f64.powi(exponent))
        });
        let (from, to) = (low / 1.15, high * 1.15);
        let mut values: Vec<f64> = values.filter(|value| (from..=to).contains(value)).collect();
        if values.len() < 2 {
            values = vec![low, high];
            values.dedup();
        }
        Self::between(from, to, Scale::Logarithmic).ticks_at(values)
    }

    /// Returns the position of a value, 0 at the start and 1 at the end of the axis.
    #[must_use]
    pub fn position(&self, value: f64) -> f64 {
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
fn tick_label(value: f64) -> String {
    let size = value.abs();
    if size < 1e-12 {
        return "0".to_owned();
    }
    if !(1e-4..1e7).contains(&size) {
        return format!("{value:.0e}");
    }
    if size < 1_000.0 {
        let text = format!("{value:.6}");
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let whole = value.round() as i64;
    let (thousands, rest) = (whole / 1_000, whole.abs() % 1_000);
    match thousands.abs() {
        0..1_000 => format!("{thousands},{rest:03}"),
        _ => format!(
            "{},{:03},{rest:03}",
            thousands / 1_000,
            thousands.abs() % 1_000
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &ChartAxis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| &**label).collect()
    }

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        for (values, scale, expected) in [
            (
                vec![0.13, 2.31],
                Scale::Automatic,
                vec!["0", "0.5", "1", "1.5", "2", "2.5"],
            ),
            (
                vec![5.0, 5.0],
                Scale::Automatic,
                vec!["4.4", "4.6", "4.8", "5", "5.2", "5.4", "5.6"],
            ),
            (
                vec![0.001, 2.3],
                Scale::Automatic,
                vec!["0.001", "0.01", "0.1", "1"],
            ),
            (
                vec![-3.0, 4.0],
                Scale::Automatic,
                vec!["-4", "-2", "0", "2", "4"],
            ),
            (vec![0.1, 0.3], Scale::Logarithmic, vec!["0.1", "0.2"]),
            (vec![0.3], Scale::Logarithmic, vec!["0.3"]),
            (vec![3.0, 150.0], Scale::Logarithmic, vec!["10", "100"]),
            (
                vec![0.003, 0.09],
                Scale::Logarithmic,
                vec!["0.005", "0.01", "0.02", "0.05", "0.1"],
            ),
            (
                vec![0.0, 1e4],
                Scale::Logarithmic,
                vec!["0", "2,000", "4,000", "6,000", "8,000", "10,000"],
            ),
        ] {
            let axis = ChartAxis::of(values.into_iter(), scale, 5).unwrap();
            assert_eq!(labels(&axis), expected);
            assert!(
                axis.ticks
                    .iter()
                    .all(|(tick, _)| (0.0..=1.0).contains(&axis.position(*tick)))
            );
        }
        assert_eq!(ChartAxis::of(std::iter::empty(), Scale::Linear, 5), None);
        let labels = [-12_345.0, 1_000.0, 9_999_999.0].map(tick_label);
        assert_eq!(labels, ["-12,345", "1,000", "9,999,999"]);
    }

    #[test]
    fn names_are_in_the_middle_of_their_parts() {
        let axis = ChartAxis::named(&["a", "a name that is very long"]);
        assert_eq!(labels(&axis), ["a", "a name that is"]);
        assert_eq!(axis.position(1.0), 0.75);
        assert!(ChartAxis::named(&["x"; 20]).ticks.is_empty());
    }

    #[test]
    fn extreme_values_give_a_bounded_number_of_ticks() {
        for values in [
            [1e-300, 1e300],
            [0.0, 1e300],
            [1e15, 1e15 + 1.0],
            [0.0, 5e-324],
        ] {
            let axis = ChartAxis::of(values.into_iter(), Scale::Automatic, 5);
            assert!(
                axis.is_none_or(|axis| axis.ticks.len() <= 101),
                "{values:?}"
            );
        }
        assert!(ChartAxis::from_zero(1.0, 6).ticks.len() == 2);
    }
}
