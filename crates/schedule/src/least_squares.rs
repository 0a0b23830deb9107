//! Least squares with parameters that are not negative, robust to single bad samples.

/// Times that samples are weighed anew.
const TURNS: usize = 15;
/// Errors up to this many times the typical one keep their full weight.
const TYPICAL: f64 = 1.5;
/// What is added to the diagonal, relative to it, so that equal columns share what they explain.
const RIDGE: f64 = 1e-9;

/// A row that the parameters should make equal to a target.
#[derive(Debug, Clone, Copy)]
struct Row<const N: usize> {
    row: [f64; N],
    target: f64,
    weight: f64,
}

/// A parameter leans to a value where the samples leave a choice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaning {
    pub(crate) column: usize,
    pub(crate) value: f64,
    pub(crate) weight: f64,
}

/// The parameters, none negative, with which `rows * parameters` comes closest to `targets`, which are
/// positive: in proportion, half as much being as far off as twice as much. Samples have `weights`;
/// those that fit far worse than most count for less.
///
/// All subsets of columns are tried, so that each minimum is exact: for up to a dozen columns. Only
/// the four kinds of arithmetic and square roots in a fixed order: the same bits on every machine.
pub(crate) fn fit<const N: usize>(
    rows: &[[f64; N]],
    targets: &[f64],
    weights: &[f64],
    leanings: &[Leaning],
) -> [f64; N] {
    let mut leaning = Vec::new();
    for lean in leanings {
        let mut row = [0.0; N];
        row[lean.column] = 1.0 / lean.value;
        let (target, weight) = (1.0, lean.weight);
        leaning.push(Row {
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
        let samples = samples.map(|((((row, target), weight), scale), trust)| Row {
            row: row.map(|x| x / scale),
            target: target / scale,
            weight: weight * trust,
        });
        parameters = solve(&samples.chain(leaning.iter().copied()).collect::<Vec<_>>());
        let mut errors = Vec::with_capacity(rows.len());
        for (place, (row, target)) in rows.iter().zip(targets).enumerate() {
            let predicted = dot(row, &parameters).max(target / 1000.0);
            scales[place] = (predicted * target).sqrt();
            errors.push((predicted - target).abs() / scales[place] * weights[place].sqrt());
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

/// Weighted least squares by the best subset of columns.
fn solve<const N: usize>(rows: &[Row<N>]) -> [f64; N] {
    let (mut normal, mut right) = ([[0.0; N]; N], [0.0; N]);
    for Row {
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

/// The minimum over some columns, by elimination; `None` when it is not unique or has a negative
/// parameter.
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
    fn parameters_are_found_again_and_never_negative() {
        let rows = [[1.0, 2.0], [1.0, 5.0], [1.0, 9.0], [1.0, 30.0]];
        let targets = rows.map(|row| dot(&row, &[3.0, 0.5]));
        let found = fit(&rows, &targets, &[1.0; 10][..rows.len()], &[]);
        assert!(
            (found[0] - 3.0).abs() < 1e-6 && (found[1] - 0.5).abs() < 1e-6,
            "{found:?}"
        );
        // A falling line: the best that does not fall.
        let found = fit(&rows, &[4.0, 3.9, 3.8, 3.7], &[1.0; 4], &[]);
        assert!(found[1] < 1e-9 && found[0] > 3.6, "{found:?}");
        assert_eq!(fit::<2>(&[], &[], &[], &[]), [0.0, 0.0]);
        assert_eq!(
            fit(&[[0.0, 2.0], [0.0, 4.0]], &[1.0, 2.0], &[1.0; 2], &[])[0],
            0.0
        );
    }

    #[test]
    fn where_the_rows_leave_a_choice_it_leans_as_it_is_told() {
        let lean = |weight| Leaning {
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
    fn one_bad_sample_among_several_does_little() {
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
