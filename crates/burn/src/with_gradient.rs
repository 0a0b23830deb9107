//! [`with_gradient`]: the starting point of a layer's backward pass.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::{Autodiff, Flex};
use burn::tensor::{Tensor, TensorData};

/// Returns a scalar whose backward passes `gradient` to `output`, as `sum(output * gradient)`
/// would, at no cost. Its value is zero. `gradient` is on the plain device.
pub(crate) fn with_gradient<const D: usize>(output: Tensor<D>, gradient: Tensor<D>) -> Tensor<1> {
    let node = output.try_into_primitive::<Autodiff<Flex>>();
    let node = node.expect("a tracked output is on the training device");
    let given = gradient.try_into_primitive::<Flex>();
    let given = given.expect("there is one plain device");
    let zero = FlexTensor::from_data(TensorData::new(vec![0.0_f32], [1]));
    let prepared = GivenGradient
        .prepare::<NoCheckpointing>([node.node()])
        .compute_bound()
        .stateful();
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => prepared.finish(given, zero),
        OpsKind::UnTracked(prepared) => prepared.finish(zero),
    })
}

/// Replaces the gradient of the scalar by the given one.
#[derive(Debug)]
struct GivenGradient;

impl Backward<Flex, 1> for GivenGradient {
    type State = FlexTensor;

    fn backward(
        self,
        ops: Ops<FlexTensor, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let _ = gradients.consume::<Flex>(&ops.node);
        if let [Some(parent)] = ops.parents {
            gradients.register::<Flex>(parent.id, ops.state);
        }
    }
}
