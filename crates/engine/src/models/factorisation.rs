//! Matrix factorisation: the values that users give to items.

use super::{Layers, refuse};
use crate::graph::GraphBuilder;
use crate::initial::Initial;

/// Samples have the numbers of users and items as `f32`, which represents whole numbers up to this.
const ROWS_MAX: usize = 1 << 24;

/// The deviation of the initial factors.
const DEVIATION: f64 = 0.1;

/// Describes the only layer: the score of a user and an item.
pub(super) fn layers(input_shape: &[usize], rows: [usize; 2], factors: usize) -> Layers {
    if rows.iter().any(|count| !(1..=ROWS_MAX).contains(count)) || factors == 0 {
        let [users, items] = rows;
        return refuse(format!(
            "invalid users = {users}, items = {items}, factors = {factors}: expected 1 to {ROWS_MAX} users and items, and 1 factor or more"
        ));
    }
    if *input_shape != [2] {
        return refuse(format!(
            "invalid sample shape {input_shape:?}: expected [2], the numbers of a user and an item"
        ));
    }
    let mut layer = GraphBuilder::new("factors", input_shape);
    layer.set_initial(Initial::Deviation(DEVIATION));
    layer.factor_scores("", layer.input(), rows, factors);
    Ok(vec![layer.finish()?])
}
