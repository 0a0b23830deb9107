//! Operations on images as ONNX nodes.

use ronde_core::layout::TensorEntry;
use ronde_engine::device::kernel::PlaneMap;
use ronde_engine::{AverageAreas, GroupedConvolution, SlidingWindow};

use super::graph::Attribute;
use super::translate::Translator;
use crate::converted::transposed;

fn ints(name: &'static str, values: &[usize]) -> Attribute {
    Attribute::Ints(name, values.iter().map(|&value| value as i64).collect())
}

/// Returns the padding before and after each axis.
fn pads([height, width]: [usize; 2]) -> Attribute {
    ints("pads", &[height, width, height, width])
}

impl Translator<'_> {
    pub(super) fn convolution(
        &mut self,
        x: &str,
        shape: &GroupedConvolution,
        tensors: &[TensorEntry],
    ) -> String {
        let names: Vec<String> = tensors.iter().map(|tensor| self.tensor(tensor)).collect();
        let inputs: Vec<&str> = std::iter::once(x)
            .chain(names.iter().map(String::as_str))
            .collect();
        let attributes = vec![
            Attribute::Int("group", shape.groups as i64),
            ints("kernel_shape", &shape.each.kernel),
            ints("strides", &shape.each.stride),
            pads(shape.each.padding),
        ];
        self.node("Conv", &inputs, attributes)
    }

    pub(super) fn max_pool(&mut self, x: &str, window: &SlidingWindow) -> String {
        self.node("MaxPool", &[x], Self::window(window))
    }

    fn window(window: &SlidingWindow) -> Vec<Attribute> {
        vec![
            ints("kernel_shape", &window.side),
            ints("strides", &window.stride),
            pads(window.padding),
        ]
    }

    pub(super) fn planes(&mut self, x: &str, map: PlaneMap, channels: usize) -> String {
        match map {
            PlaneMap::Average { window, .. } => {
                let mut attributes = Self::window(&window);
                attributes.push(Attribute::Int("count_include_pad", 1));
                self.node("AveragePool", &[x], attributes)
            }
            PlaneMap::Areas(areas) => self.average_areas(x, areas, channels),
            PlaneMap::Enlarge { factor, .. } => {
                let name = format!("scales/{factor}");
                let factor = factor as f32;
                let scales = self.floats(&name, &[4], vec![1.0, 1.0, factor, factor]);
                let attributes = vec![
                    Attribute::Text("mode", "nearest"),
                    Attribute::Text("nearest_mode", "floor"),
                    Attribute::Text("coordinate_transformation_mode", "asymmetric"),
                ];
                self.node("Resize", &[x, "", &scales], attributes)
            }
        }
    }

    /// The mean of an area is the product of the means along its two axes: a matrix on each side of the plane.
    fn average_areas(&mut self, x: &str, areas: AverageAreas, channels: usize) -> String {
        let AverageAreas { size, areas } = areas;
        if areas == [1, 1] {
            return self.node("GlobalAveragePool", &[x], Vec::new());
        }
        let rows = Self::means(size[0], areas[0]);
        let name = format!("means/{}of{}", areas[0], size[0]);
        let rows = self.floats(&name, &[areas[0], size[0]], rows);
        let columns = transposed(&Self::means(size[1], areas[1]), [areas[1], size[1]]);
        let name = format!("means/{}of{}/transposed", areas[1], size[1]);
        let columns = self.floats(&name, &[size[1], areas[1]], columns);
        let x = self.node("MatMul", &[&rows, x], Vec::new());
        let x = self.node("MatMul", &[&x, &columns], Vec::new());
        self.reshape(&x, &[channels, areas[0], areas[1]])
    }

    /// Returns the matrix `[areas, length]` of the means of areas that cover a length evenly.
    fn means(length: usize, areas: usize) -> Vec<f32> {
        let mut matrix = vec![0.0; areas * length];
        for (index, row) in matrix.chunks_exact_mut(length.max(1)).enumerate() {
            let covered = index * length / areas..((index + 1) * length).div_ceil(areas);
            let share = 1.0 / covered.len() as f32;
            row[covered].fill(share);
        }
        matrix
    }

    pub(super) fn group_norm(
        &mut self,
        x: &str,
        (groups, epsilon): (usize, f64),
        tensors: &[TensorEntry],
        sample: &[usize],
    ) -> String {
        let shape = self.ints(&[0, groups as i64, -1]);
        let y = self.node("Reshape", &[x, &shape], Vec::new());
        let ones = self.floats(&format!("ones/{groups}"), &[groups], vec![1.0; groups]);
        let zeros = self.floats(&format!("zeros/{groups}"), &[groups], vec![0.0; groups]);
        let epsilon = Attribute::Float("epsilon", epsilon as f32);
        let y = self.node("InstanceNormalization", &[&y, &ones, &zeros], vec![epsilon]);
        let y = self.reshape(&y, sample);
        let per_channel = [sample[0], 1, 1];
        let [gamma, beta] =
            [0, 1].map(|index| self.tensor_as(&tensors[index], &tensors[index].name, &per_channel));
        let y = self.node("Mul", &[&y, &gamma], Vec::new());
        self.node("Add", &[&y, &beta], Vec::new())
    }
}
