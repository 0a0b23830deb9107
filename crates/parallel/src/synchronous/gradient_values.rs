//! The values of the mean gradient that a rank reports, such as for histograms.

use ronde_core::GroupRank;
use ronde_core::norm::BLOCK;
use ronde_engine::GradientScale;

use super::SynchronousStrategy;
use super::update::runs;
use crate::strategy::ReducedGradient;

impl SynchronousStrategy {
    /// Passes the mean gradient of the trained tensors to `visit`, a run of elements at a time: that of the slices of this rank
    /// if the gradient is divided, and otherwise all of it on rank 0.
    pub(super) fn visit_reported(
        &self,
        reduced: &ReducedGradient,
        targets: u64,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) {
        if !self.is_divided() && self.groups.all.rank() != GroupRank(0) {
            return;
        }
        let scale = GradientScale::new(targets.max(1), self.scale.inverse());
        let mut mean = [0.0; BLOCK];
        for part in reduced.parts.iter().filter(|part| part.is_owned) {
            for index in self.tensors_in(&part.elements) {
                if !self.is_trained(index) {
                    continue;
                }
                for run in runs(&self.state.tensors()[index].range, &part.elements, BLOCK) {
                    let mean = &mut mean[..run.len()];
                    scale.write(part.values(&run), mean);
                    visit(index, mean);
                }
            }
        }
    }
}
