//! Operations on images: values of shape `[channels, height, width]`.

use ronde_kernels::{GroupedConvolution, SlidingWindow};

use super::{GraphBuilder, GraphValue};
use crate::device::kernel::PlaneMap;
use crate::graph::OwnTensor;
use crate::initial::Initial;
use crate::models::Normalisation;
use crate::operations::AfterNorm;
use crate::operations::{
    Convolve, MapPlanes, MaxPool, NormaliseBatch, NormaliseBatchWide, NormaliseGroups,
};

/// The number of groups of [`Normalisation::Group`]: the paper's choice.
const GROUPS: usize = 32;

impl GraphBuilder {
    /// Checks that a value is an image, and returns channels, height and width.
    fn image(&mut self, name: &str, x: GraphValue) -> [usize; 3] {
        match *self.shape(x) {
            [channels, height, width] => [channels, height, width],
            _ => {
                let shape = self.shape(x).to_vec();
                self.fail(format!(
                    "{name}: invalid input shape {shape:?}: expected [channels, height, width]"
                ));
                [1; 3]
            }
        }
    }

    /// Adds a convolution of `[channels, height, width]`; `weight` is `[outputs, channels,
    /// height, width]` of the window.
    pub fn convolution(
        &mut self,
        name: &str,
        x: GraphValue,
        outputs: usize,
        window: SlidingWindow,
        has_bias: bool,
    ) -> GraphValue {
        self.grouped_convolution(name, x, [outputs, 1], window, has_bias)
    }

    /// Adds a convolution in which each of `groups` groups of input channels makes a group of the
    /// `outputs`; with as many groups as channels it is depthwise. `weight` is `[outputs, channels /
    /// groups, height, width]` of the window.
    pub fn grouped_convolution(
        &mut self,
        name: &str,
        x: GraphValue,
        [outputs, groups]: [usize; 2],
        window: SlidingWindow,
        has_bias: bool,
    ) -> GraphValue {
        let [channels, height, width] = self.image(name, x);
        let size = window.count([height, width]);
        if size.contains(&0) || window.side.contains(&0) || window.stride.contains(&0) {
            self.fail(format!(
                "{name}: cannot move {window:?} over {height} x {width}"
            ));
            return x;
        }
        if groups == 0 || !channels.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            self.fail(format!(
                "{name}: {groups} groups do not divide {channels} channels and {outputs} outputs"
            ));
            return x;
        }
        let initial = self.initial;
        let shape = [outputs, channels / groups, window.side[0], window.side[1]];
        let mut tensors = vec![self.tensor(name, "weight", &shape, initial)];
        if has_bias {
            tensors.push(self.tensor(name, "bias", &[outputs], Initial::Constant(0.0)));
        }
        let each = ronde_kernels::Convolution {
            channels: channels / groups,
            size: [height, width],
            outputs: outputs / groups,
            kernel: window.side,
            stride: window.stride,
            padding: window.padding,
        };
        let operation = Convolve {
            shape: GroupedConvolution { each, groups },
            has_bias,
        };
        self.add_operation(operation, &[x], vec![outputs, size[0], size[1]], tensors)
    }

    /// Adds a normalisation of groups of channels of each sample, with `gamma` and `beta` of `[channels]`.
    pub fn group_norm(&mut self, name: &str, x: GraphValue, groups: usize) -> GraphValue {
        let [channels, height, width] = self.image(name, x);
        if groups == 0 || !channels.is_multiple_of(groups) {
            self.fail(format!(
                "{name}: {channels} channels are not a multiple of {groups} groups"
            ));
            return x;
        }
        let tensors = self.scale_and_shift(name, channels);
        let operation = NormaliseGroups::new([channels, height * width], groups);
        self.add_operation(operation, &[x], vec![channels, height, width], tensors)
    }

    /// Returns the tensors that scale and shift channels: ones and zeros.
    fn scale_and_shift(&mut self, name: &str, channels: usize) -> Vec<OwnTensor> {
        let affine = [("gamma", 1.0), ("beta", 0.0)];
        let affine = affine.into_iter();
        affine
            .map(|(tensor, value)| self.tensor(name, tensor, &[channels], Initial::Constant(value)))
            .collect()
    }

    /// Adds a normalisation of channels, by 32 groups if `kind` is that of groups, then the addition of `added` if there is one, then a
    /// rectifier if configured.
    pub fn normalise(
        &mut self,
        name: &str,
        kind: Normalisation,
        x: GraphValue,
        added: Option<GraphValue>,
        after: AfterNorm,
    ) -> GraphValue {
        let [channels, height, width] = self.image(name, x);
        if let Some(added) = added {
            self.same_shape(name, [x, added]);
        }
        let shape = vec![channels, height, width];
        if kind == Normalisation::Group {
            let mut y = self.group_norm(name, x, GROUPS);
            if let Some(added) = added {
                y = self.add(y, added);
            }
            return match after {
                AfterNorm::Linear => y,
                AfterNorm::Rectified => self.relu(y),
            };
        }
        let mut tensors = self.scale_and_shift(name, channels);
        tensors.push(self.buffer(name, "running_mean", channels, 0.0));
        tensors.push(self.buffer(name, "running_var", channels, 1.0));
        let inputs: Vec<GraphValue> = std::iter::once(x).chain(added).collect();
        if kind == Normalisation::Batch {
            let operation = NormaliseBatch::new(channels, height * width, after, added.is_some());
            return self.add_operation(operation, &inputs, shape, tensors);
        }
        let title = format!("{}{name}", self.prefix);
        let node =
            NormaliseBatchWide::new(title, [channels, height * width], after, added.is_some());
        self.add_node(Box::new(node), &inputs, shape, tensors)
    }

    /// Adds the greatest value of each window of `[channels, height, width]`.
    pub fn max_pool(&mut self, x: GraphValue, window: SlidingWindow) -> GraphValue {
        let [channels, height, width] = self.image("max_pool", x);
        let size = window.count([height, width]);
        if size.contains(&0) || window.stride.contains(&0) || !window.touches_image() {
            self.fail(format!(
                "max_pool: cannot move {window:?} over {height} x {width}"
            ));
            return x;
        }
        let operation = MaxPool {
            size: [height, width],
            window,
            outputs: channels * size[0] * size[1],
        };
        self.add_operation(
            operation,
            &[x],
            vec![channels, size[0], size[1]],
            Vec::new(),
        )
    }

    /// Adds the mean of each window of `[channels, height, width]`; padding counts as zeros.
    pub fn average_pool(&mut self, x: GraphValue, window: SlidingWindow) -> GraphValue {
        let [channels, height, width] = self.image("average_pool", x);
        let size = window.count([height, width]);
        if size.contains(&0) || window.stride.contains(&0) || !window.touches_image() {
            self.fail(format!(
                "average_pool: cannot move {window:?} over {height} x {width}"
            ));
            return x;
        }
        let map = PlaneMap::Average {
            size: [height, width],
            window,
        };
        let operation = MapPlanes { map, output: size };
        self.add_operation(
            operation,
            &[x],
            vec![channels, size[0], size[1]],
            Vec::new(),
        )
    }

    /// Enlarges `[channels, height, width]` by a factor: each element becomes a square.
    pub fn upsample(&mut self, x: GraphValue, factor: usize) -> GraphValue {
        let [channels, height, width] = self.image("upsample", x);
        if factor == 0 {
            self.fail("upsample: expected a factor of at least 1".to_owned());
            return x;
        }
        let shape = [height, width].map(|length| length.saturating_mul(factor));
        let operation = MapPlanes {
            map: PlaneMap::Enlarge {
                size: [height, width],
                factor,
            },
            output: shape,
        };
        let shape = vec![channels, shape[0], shape[1]];
        self.add_operation(operation, &[x], shape, Vec::new())
    }

    /// Adds the means of areas that cover `[channels, height, width]` evenly: so many along height and width.
    pub fn average_to(&mut self, x: GraphValue, areas: [usize; 2]) -> GraphValue {
        let [channels, height, width] = self.image("average_to", x);
        if areas.contains(&0) {
            self.fail("average_to: expected at least one area".to_owned());
            return x;
        }
        let areas = ronde_kernels::AverageAreas {
            size: [height, width],
            areas,
        };
        self.add_operation(
            MapPlanes {
                map: PlaneMap::Areas(areas),
                output: areas.areas,
            },
            &[x],
            vec![channels, areas.areas[0], areas.areas[1]],
            Vec::new(),
        )
    }
}
