//! Least squares with non-negative parameters, robust to outliers.

/// The number of reweighting iterations.
const TURNS: usize = 15;
/// The limit of an error, as a multiple of the typical error, up to which a sample keeps its full weight.
const TYPICAL: f64 = 1.5;
/// The relative addition to the diagonal, so that equal columns get equal parameters.
const RIDGE: f64 = 1e-9;

/// A row of the system, with its target.
#[derive(Debug, Clone, Copy)]
struct WeightedRow<const N: usize> {
    row: [f64; N],
    target: f64,
    weight: f64,
}

/// The prior value of a parameter, which decides if the samples do not determine it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prior {
    pub(crate) column: usize,
    pub(crate) value: f64,
    pub(crate) weight: f64,
}

/// Returns the non-negative parameters with which `rows * parameters` is closest to `targets`, which are positive.
/// Distances are relative: half of a target is as far off as twice the target. Samples have `weights`; outliers get
/// less weight.
///
/// The minimum is exact, because all subsets of columns are tried; this is feasible for up to a dozen columns. Uses
/// only basic arithmetic and square roots in a fixed order, so the bits are the same on every machine.
pub(crate) fn fit<const N: usize>(
    rows: &[[f64; N]],
    targets: &[f64],
    weights: &[f64],
    priors: &[Prior],
) -> [f64; N] {
    let mut prior_rows = Vec::new();
    for prior in priors {
        let mut row = [0.0; N];
        row[prior.column] = 1.0 / prior.value;
        let (target, weight) = (1.0, prior.weight);
        prior_rows.push(WeightedRow {
            row,
            target,
            weight,
        });
    }
    let mut scales: Vec<f64> = targets.to_vec();
    let mut trust = vec![1.0; targets.len()];
    let mut parameters = [0.0; N];
    for _ in 0..TURNS {
        let samples = rows
            .iter()
            .zip(targets)
            .zip(weights)
            .zip(&scales)
            .zip(&trust);
        let samples = samples.map(|((((row, target), weight), scale), trust)| WeightedRow {
            row: row.map(|x| x / scale),
            target: target / scale,
            weight: weight * trust,
        });
        parameters = solve(
            &samples
                .chain(prior_rows.iter().copied())
                .collect::<Vec<_>>(),
        );
        let mut errors = Vec::with_capacity(rows.len());
        for (index, (row, target)) in rows.iter().zip(targets).enumerate() {
            let predicted = dot(row, &parameters).max(target / 1000.0);
            scales[index] = (predicted * target).sqrt();
            errors.push((predicted - target).abs() / scales[index] * weights[index].sqrt());
        }
        let limit = TYPICAL * median(errors.clone()).max(1e-6);
        for (trust, error) in trust.iter_mut().zip(errors) {
            *trust = if error > limit { limit / error } else { 1.0 };
        }
    }
    parameters
}

pub(crate) fn dot<const N: usize>(row: &[f64; N], parameters: &[f64; N]) -> f64 {
    row.iter()
        .zip(parameters)
        .fold(0.0, |sum, (x, p)| sum + x * p)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Solves weighted least squares with the best subset of columns.
fn solve<const N: usize>(rows: &[WeightedRow<N>]) -> [f64; N] {
    let (mut normal, mut right) = ([[0.0; N]; N], [0.0; N]);
    for WeightedRow {
        row,
        target,
        weight,
    } in rows
    {
        for i in 0..N {
            right[i] += weight * row[i] * target;
            for j in 0..N {
                normal[i][j] += weight * row[i] * row[j];
            }
        }
    }
    let (mut best, mut least) = ([0.0; N], f64::INFINITY);
    for subset in 0..1_u32 << N {
        let columns: Vec<usize> = (0..N).filter(|c| subset & 1 << c != 0).collect();
        let Some(parameters) = solve_subset(&normal, &right, &columns) else {
            continue;
        };
        let error = rows.iter().fold(0.0, |sum, row| {
            let error = dot(&row.row, &parameters) - row.target;
            sum + row.weight * error * error
        });
        if error < least {
            (best, least) = (parameters, error);
        }
    }
    best
}

/// Computes the minimum over some columns by elimination; `None` if it is not unique or has a negative parameter.
fn solve_subset<const N: usize>(
    normal: &[[f64; N]; N],
    right: &[f64; N],
    columns: &[usize],
) -> Option<[f64; N]> {
    let count = columns.len();
    let mut matrix: Vec<Vec<f64>> = columns
        .iter()
        .map(|&i| {
            let row = columns.iter().map(|&j| {
                let ridge = if i == j { 1.0 + RIDGE } else { 1.0 };
                normal[i][j] * ridge
            });
            row.chain([right[i]]).collect()
        })
        .collect();
    for pivot in 0..count {
        if matrix[pivot][pivot] <= normal[columns[pivot]][columns[pivot]] * RIDGE / 10.0 {
            return None;
        }
        let (above, below) = matrix.split_at_mut(pivot + 1);
        let above = &above[pivot];
        for row in below {
            let factor = row[pivot] / above[pivot];
            for (value, above) in row.iter_mut().zip(above).skip(pivot) {
                *value -= factor * above;
            }
        }
    }
    let mut parameters = [0.0; N];
    for pivot in (0..count).rev() {
        let known = (pivot + 1..count).fold(0.0, |sum, column| {
            sum + matrix[pivot][column] * parameters[columns[column]]
        });
        let value = (matrix[pivot][count] - known) / matrix[pivot][pivot];
        if value < 0.0 || !value.is_finite() {
            return None;
        }
        parameters[columns[pivot]] = value;
    }
    Some(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fitting_recovers_parameters_that_are_never_negative() {
        let rows = [[1.0, 2.0], [1.0, 5.0], [1.0, 9.0], [1.0, 30.0]];
        let targets = rows.map(|row| dot(&row, &[3.0, 0.5]));
        let found = fit(&rows, &targets, &[1.0; 10][..rows.len()], &[]);
        assert!(
            (found[0] - 3.0).abs() < 1e-6 && (found[1] - 0.5).abs() < 1e-6,
            "{found:?}"
        );
        // A decreasing line: the result is the best line that does not decrease.
        let found = fit(&rows, &[4.0, 3.9, 3.8, 3.7], &[1.0; 4], &[]);
        assert!(found[1] < 1e-9 && found[0] > 3.6, "{found:?}");
        assert_eq!(fit::<2>(&[], &[], &[], &[]), [0.0, 0.0]);
        assert_eq!(
            fit(&[[0.0, 2.0], [0.0, 4.0]], &[1.0, 2.0], &[1.0; 2], &[])[0],
            0.0
        );
    }

    #[test]
    fn priors_decide_undetermined_parameters() {
        let lean = |weight| Prior {
            column: 0,
            value: 0.5,
            weight,
        };
        let rows = [[1.0, 1.0], [2.0, 2.0], [5.0, 5.0]];
        let found = fit(&rows, &[3.0, 6.0, 15.0], &[1.0; 3], &[lean(0.01)]);
        assert!(
            (found[0] - 0.5).abs() < 0.01 && (found[1] - 2.5).abs() < 0.01,
            "{found:?}"
        );
        let found = fit(
            &[[1.0, 0.0], [1.0, 1.0]],
            &[3.0, 4.0],
            &[1.0; 2],
            &[lean(1e-4)],
        );
        assert!((found[0] - 3.0).abs() < 0.05, "{found:?}");
    }

    #[test]
    fn one_outlier_has_little_influence() {
        let rows: Vec<[f64; 2]> = (1..=10).map(|x| [1.0, f64::from(x)]).collect();
        let mut targets: Vec<f64> = rows.iter().map(|row| dot(row, &[2.0, 1.0])).collect();
        targets[6] *= 10.0;
        let found = fit(&rows, &targets, &[1.0; 10][..rows.len()], &[]);
        assert!(
            (found[0] - 2.0).abs() < 0.1 && (found[1] - 1.0).abs() < 0.1,
            "{found:?}"
        );
    }
}
