//! The kernels of a device, by kind of operation.
//!
//! Shapes: N samples, C channels, P positions of a channel (height times width), T and S positions of a sequence, E width.
//! All values are row-major, the first dimension outermost. A kernel writes all of its outputs, except where it
//! adds to them. Without samples, rows or terms it writes zeros to sums and gradients, and nothing else.
//!
//! NaN and infinite values are not hidden: NaN in an input makes each output NaN that depends on it, unless the method
//! states another result, and infinite values give what arithmetic in f32 gives, `0 * infinity` being NaN. Samples do not
//! affect each other, except through statistics of a batch. [`check_device`](crate::check_device) checks all of this.

use ronde_kernels::{
    ActivationFunction, Attention, AverageAreas, BatchNorm, GroupNorm, GroupedConvolution,
    ShortFormat, SlidingWindow,
};

use super::{DeviceSlice, DeviceSliceMut};
use crate::context::ForwardContext;

/// A matrix in the memory of a device.
#[derive(Debug, Clone, Copy)]
pub struct MatrixSlice<'a> {
    /// The values, row-major in the order in which they are stored.
    pub values: DeviceSlice<'a>,
    /// The number of rows as they are stored.
    pub rows: usize,
    /// The number of columns as they are stored.
    pub columns: usize,
    /// Whether the product uses the transposed matrix.
    pub is_transposed: bool,
    /// The format to which all values are rounded, if it is known.
    pub format: Option<ShortFormat>,
}

impl<'a> MatrixSlice<'a> {
    /// Creates a matrix of `rows` by `columns`.
    #[must_use]
    pub fn new(values: DeviceSlice<'a>, rows: usize, columns: usize) -> Self {
        Self {
            values,
            rows,
            columns,
            is_transposed: false,
            format: None,
        }
    }

    /// Returns the same matrix, whose values are all rounded to a format.
    #[must_use]
    pub fn rounded_to(self, format: Option<ShortFormat>) -> Self {
        Self { format, ..self }
    }

    /// Returns the transposed matrix of the same memory. Cost: none.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            is_transposed: !self.is_transposed,
            ..self
        }
    }
}

/// Matrix products and sums over rows.
pub trait MatrixKernels {
    /// Computes `to = left * right`, or `to += left * right` if `adds`. Operands of one format may be multiplied in this
    /// format; sums and the result are f32.
    fn multiply(
        &self,
        left: MatrixSlice<'_>,
        right: MatrixSlice<'_>,
        to: DeviceSliceMut<'_>,
        adds: bool,
    );

    /// Writes a row to each row of `to`.
    fn repeat_row(&self, row: DeviceSlice<'_>, to: DeviceSliceMut<'_>);

    /// Writes the sum of all rows of `rows`, which have the length of `to`.
    fn sum_rows(&self, rows: DeviceSlice<'_>, to: DeviceSliceMut<'_>);
}

/// A map of planes `[height, width]` to planes of another size, linear in their elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaneMap {
    /// The mean of each window; padding counts as zeros.
    Average {
        /// Height and width of the input.
        size: [usize; 2],
        /// The window.
        window: SlidingWindow,
    },
    /// The means of areas that cover the plane evenly.
    Areas(AverageAreas),
    /// Each element becomes a square of `factor` by `factor`.
    Enlarge {
        /// Height and width of the input.
        size: [usize; 2],
        /// The side of a square.
        factor: usize,
    },
}

impl PlaneMap {
    /// Returns the number of elements of a plane of the input, at least 1.
    pub(crate) fn elements(&self) -> usize {
        let (Self::Average { size, .. }
        | Self::Areas(AverageAreas { size, .. })
        | Self::Enlarge { size, .. }) = self;
        (size[0] * size[1]).max(1)
    }
}

/// Convolution and pooling of images `[N, C, height, width]`.
///
/// Padding counts as zeros, by which weights and gradients may be multiplied. A convolution may be computed in a transformed
/// form, in which NaN or an infinite value reaches all outputs of the same tile of its sample, as NaN.
pub trait ImageKernels {
    /// Computes the convolution of `samples` images `x` by the weights `w`. If both are rounded to a format, products may be
    /// computed in it; sums and the result are f32.
    fn convolve(
        &self,
        shape: &GroupedConvolution,
        format: Option<ShortFormat>,
        samples: usize,
        x: DeviceSlice<'_>,
        w: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
    );

    /// Computes the gradient of the input of a convolution from that of its output; the format as for
    /// [`ImageKernels::convolve`].
    fn convolve_input_gradient(
        &self,
        shape: &GroupedConvolution,
        format: Option<ShortFormat>,
        samples: usize,
        w: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        dx: DeviceSliceMut<'_>,
    );

    /// Computes the gradient of the weights of a convolution, summed over samples; the format as for
    /// [`ImageKernels::convolve`].
    fn convolve_weight_gradient(
        &self,
        shape: &GroupedConvolution,
        format: Option<ShortFormat>,
        samples: usize,
        x: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        dw: DeviceSliceMut<'_>,
    );

    /// Adds a number per channel to all `places` positions of it.
    fn add_to_channels(&self, y: DeviceSliceMut<'_>, places: usize, added: DeviceSlice<'_>);

    /// Writes the sum of each channel over samples and positions.
    fn sum_channels(&self, x: DeviceSlice<'_>, places: usize, to: DeviceSliceMut<'_>);

    /// Writes the greatest value of each window, and to `from` its position in its plane, as the bits of a u32. NaN counts as
    /// the greatest value; of equal values the first is taken. Padding is not a value: a window of -infinity has this result.
    fn max_pool(
        &self,
        size: [usize; 2],
        window: SlidingWindow,
        x: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
        from: DeviceSliceMut<'_>,
    );

    /// Computes the gradient of the input of [`ImageKernels::max_pool`].
    fn max_pool_gradient(
        &self,
        size: [usize; 2],
        window: SlidingWindow,
        dy: DeviceSlice<'_>,
        from: DeviceSlice<'_>,
        dx: DeviceSliceMut<'_>,
    );

    /// Maps each plane.
    fn map_planes(&self, map: PlaneMap, x: DeviceSlice<'_>, y: DeviceSliceMut<'_>);

    /// Computes the gradient of the input of [`ImageKernels::map_planes`].
    fn map_planes_gradient(&self, map: PlaneMap, dy: DeviceSlice<'_>, dx: DeviceSliceMut<'_>);
}

/// The scale and the shift of a normalisation, per channel or per element of a row.
#[derive(Debug, Clone, Copy)]
pub struct AffineSlices<'a> {
    /// The scale.
    pub gamma: DeviceSlice<'a>,
    /// The shift.
    pub beta: DeviceSlice<'a>,
}

/// Normalisations.
///
/// Statistics of a batch are `[3, C]`: mean, variance without correction, and inverse deviation of each channel. Those of
/// rows and groups are `[.., 2]`: mean and inverse deviation.
pub trait NormKernels {
    /// Normalises channels by the statistics of the batch, which it writes; then adds `added` if given, then rectifies if
    /// configured. NaN or an infinite value makes its whole channel NaN. Without samples, mean and variance are zero.
    fn batch_norm(
        &self,
        shape: &BatchNorm,
        x: DeviceSlice<'_>,
        affine: AffineSlices<'_>,
        added: Option<DeviceSlice<'_>>,
        y: DeviceSliceMut<'_>,
        statistics: DeviceSliceMut<'_>,
    );

    /// Normalises channels by given statistics, and otherwise does the same as [`NormKernels::batch_norm`].
    fn batch_norm_by(
        &self,
        shape: &BatchNorm,
        x: DeviceSlice<'_>,
        affine: AffineSlices<'_>,
        added: Option<DeviceSlice<'_>>,
        y: DeviceSliceMut<'_>,
        statistics: DeviceSlice<'_>,
    );

    /// Computes the gradients of the input, of gamma and beta, and of the added operand if wanted. `inputs` are x, y, dy
    /// and gamma.
    fn batch_norm_gradient(
        &self,
        shape: &BatchNorm,
        inputs: [DeviceSlice<'_>; 4],
        statistics: DeviceSlice<'_>,
        gradients: [DeviceSliceMut<'_>; 3],
        of_added: Option<DeviceSliceMut<'_>>,
    );

    /// Writes statistics from running means and variances.
    fn known_statistics(
        &self,
        running: [DeviceSlice<'_>; 2],
        epsilon: f64,
        statistics: DeviceSliceMut<'_>,
    );

    /// Writes `old * (1 - momentum) + new * momentum` for the running mean and variance.
    fn move_statistics(
        &self,
        running: [DeviceSlice<'_>; 2],
        statistics: DeviceSlice<'_>,
        momentum: f64,
        to: [DeviceSliceMut<'_>; 2],
    );

    /// Returns the number of elements of a channel, and the sum and sum of squares of each channel, on the host.
    fn batch_moments(&self, shape: &BatchNorm, x: DeviceSlice<'_>) -> Vec<f64>;

    /// Returns the number of elements of a channel, and per channel the sum of the gradients and of the gradients times the
    /// normalised input, on the host.
    fn batch_gradient_sums(
        &self,
        shape: &BatchNorm,
        x: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        statistics: DeviceSlice<'_>,
    ) -> Vec<f64>;

    /// Turns the gradient of the output into that of the input, given the sums over all shards.
    fn batch_input_gradient(
        &self,
        shape: &BatchNorm,
        x: DeviceSlice<'_>,
        gamma: DeviceSlice<'_>,
        statistics: DeviceSlice<'_>,
        summed: &[f64],
        dy: DeviceSliceMut<'_>,
    );

    /// Writes the gradients of gamma and beta of a shard from its own sums.
    fn batch_affine_gradients(
        &self,
        shape: &BatchNorm,
        own: &[f64],
        statistics: DeviceSlice<'_>,
        to: [DeviceSliceMut<'_>; 2],
    );

    /// Normalises groups of channels of each sample; writes the statistics of each group.
    fn group_norm(
        &self,
        shape: &GroupNorm,
        x: DeviceSlice<'_>,
        affine: AffineSlices<'_>,
        y: DeviceSliceMut<'_>,
        statistics: DeviceSliceMut<'_>,
    );

    /// Computes the gradients of the input, gamma and beta of a group normalisation. `inputs` are x, dy and gamma.
    fn group_norm_gradient(
        &self,
        shape: &GroupNorm,
        inputs: [DeviceSlice<'_>; 3],
        statistics: DeviceSlice<'_>,
        gradients: [DeviceSliceMut<'_>; 3],
    );

    /// Normalises rows of the length of gamma; writes the statistics of each row.
    fn layer_norm(
        &self,
        x: DeviceSlice<'_>,
        affine: AffineSlices<'_>,
        epsilon: f64,
        y: DeviceSliceMut<'_>,
        statistics: DeviceSliceMut<'_>,
    );

    /// Computes the gradients of the input, gamma and beta of [`NormKernels::layer_norm`]. `inputs` are x, dy and gamma.
    fn layer_norm_gradient(
        &self,
        inputs: [DeviceSlice<'_>; 3],
        statistics: DeviceSlice<'_>,
        gradients: [DeviceSliceMut<'_>; 3],
    );
}

/// A part of the rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableRows {
    /// The number of elements of a row.
    pub width: usize,
    /// The first row of the part.
    pub first: usize,
    /// The number of rows of the whole table.
    pub count: usize,
}

/// Attention and embeddings.
pub trait SequenceKernels {
    /// Computes the attention of several heads from queries, and keys and values side by side; writes the statistics of each query that
    /// backward needs, of [`Attention::elements`], whose meaning the device chooses. It keeps no matrix of all pairs. `lengths` has the number of attended keys of each sequence, or is empty for all. Without keys
    /// the output is zero.
    ///
    /// A score of -infinity has a weight of zero. A score of NaN or infinity, and scores that are all -infinity, make all
    /// weights of their query NaN. Keys and values beyond the length have no effect, whatever they are; those after the query's
    /// token in causal attention have a weight of zero, by which they may be multiplied.
    fn attend(
        &self,
        shape: &Attention,
        inputs: [DeviceSlice<'_>; 2],
        lengths: &[usize],
        y: DeviceSliceMut<'_>,
        statistics: DeviceSliceMut<'_>,
    );

    /// Computes the gradients of queries, and of keys and values, of [`SequenceKernels::attend`]. `inputs` are queries, keys and
    /// values, the statistics and dy. With a format, the weights that are computed again are rounded to it.
    fn attend_gradient(
        &self,
        shape: &Attention,
        format: Option<ShortFormat>,
        inputs: [DeviceSlice<'_>; 4],
        lengths: &[usize],
        gradients: [DeviceSliceMut<'_>; 2],
    );

    /// Writes the sum of the vector of each token and that of its position. `tables` are both sets of vectors. Tokens are
    /// `[N, T]`, the output `[N, T, width]`. A number outside the table counts as the nearest one inside, and NaN as 0.
    fn embed(
        &self,
        width: usize,
        tokens: DeviceSlice<'_>,
        tables: [DeviceSlice<'_>; 2],
        y: DeviceSliceMut<'_>,
    );

    /// Writes the vector of each token whose row is in a part of a table, and zeros for other tokens. `table` has the rows of
    /// the part. Numbers outside the whole table count as in [`SequenceKernels::embed`].
    fn embed_rows(
        &self,
        rows: TableRows,
        tokens: DeviceSlice<'_>,
        table: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
    );

    /// Writes the gradient of the rows of [`SequenceKernels::embed_rows`], summed in the order of the tokens.
    fn embed_rows_gradient(
        &self,
        rows: TableRows,
        tokens: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        gradient: DeviceSliceMut<'_>,
    );

    /// Writes the gradients of the vectors and positions of [`SequenceKernels::embed`], summed in the order of the tokens.
    fn embed_gradient(
        &self,
        width: usize,
        tokens: DeviceSlice<'_>,
        dy: DeviceSlice<'_>,
        gradients: [DeviceSliceMut<'_>; 2],
    );
}

/// Distances from rows of tables, and products of chosen rows.
pub trait TableKernels {
    /// Writes the squared distance of each point from each centre, `[points, centres]`. `inputs` are points and centres, in
    /// rows of `width` floats.
    fn squared_distances(&self, width: usize, inputs: [DeviceSlice<'_>; 2], to: DeviceSliceMut<'_>);

    /// Writes the gradient of the points of [`TableKernels::squared_distances`]. A distance whose gradient is zero has no
    /// effect, even if it is NaN; the same holds for the centres.
    fn point_gradients(
        &self,
        width: usize,
        inputs: [DeviceSlice<'_>; 2],
        dy: DeviceSlice<'_>,
        to: DeviceSliceMut<'_>,
    );

    /// Writes the gradient of each centre of [`TableKernels::squared_distances`], times its scale.
    fn centre_gradients(
        &self,
        width: usize,
        inputs: [DeviceSlice<'_>; 2],
        dy: DeviceSlice<'_>,
        scales: &[f32],
        to: DeviceSliceMut<'_>,
    );

    /// Writes the score of each user and item: the product of their rows of `factors` floats, plus a bias of each and of all.
    /// `pairs` are the numbers of a user and an item each, below the numbers of rows. `tables` are the rows of users and
    /// items, their biases, and the bias of all.
    fn factor_scores(
        &self,
        factors: usize,
        pairs: DeviceSlice<'_>,
        tables: [DeviceSlice<'_>; 5],
        y: DeviceSliceMut<'_>,
    );

    /// Writes the gradients of all tables of [`TableKernels::factor_scores`], summed in the order of the pairs. `rows` are
    /// those of users and items.
    fn factor_gradients(
        &self,
        factors: usize,
        pairs: DeviceSlice<'_>,
        rows: [DeviceSlice<'_>; 2],
        dy: DeviceSlice<'_>,
        gradients: [DeviceSliceMut<'_>; 5],
    );
}

/// A copy of a part of each row of one buffer to a part of each row of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCopy {
    /// The number of floats of a row of the source, and the start of the part.
    pub from: [usize; 2],
    /// The number of floats of a row of the destination, and the start of the part.
    pub to: [usize; 2],
    /// The number of floats of the part.
    pub length: usize,
}

/// The same part of each row of a value, of which random numbers are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawnRows {
    /// The number of elements of a row of the value.
    pub row: usize,
    /// The first element of the part.
    pub first: usize,
    /// The number of elements of the part.
    pub length: usize,
}

impl DrawnRows {
    /// Returns all of a value.
    #[must_use]
    pub fn all(elements: usize) -> Self {
        Self {
            row: elements,
            first: 0,
            length: elements,
        }
    }
}

/// Functions of single elements, and copies.
pub trait ElementKernels {
    /// Adds `x` to `y`.
    fn add(&self, y: DeviceSliceMut<'_>, x: DeviceSlice<'_>);

    /// Multiplies `y` by `factors`.
    fn multiply_by(&self, y: DeviceSliceMut<'_>, factors: DeviceSlice<'_>);

    /// Sets negative values to zero; NaN is preserved.
    fn rectify(&self, y: DeviceSliceMut<'_>);

    /// Writes zero where the output `y` of a rectifier is zero, else `dy`, also where `y` is NaN.
    fn rectify_gradient(&self, y: DeviceSlice<'_>, dy: DeviceSlice<'_>, dx: DeviceSliceMut<'_>);

    /// Writes a function of each element, and its slope if wanted. Those of infinite values are limits or NaN.
    fn activate(
        &self,
        function: ActivationFunction,
        x: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
        slope: Option<DeviceSliceMut<'_>>,
    );

    /// Writes the factors of a dropout for a part of each row of a value, one row after the other, as
    /// [`ForwardContext::draw_dropout_from`] does; in evaluation they are 1.
    fn draw_dropout(
        &self,
        context: &ForwardContext,
        probability: f64,
        index: u64,
        drawn: DrawnRows,
        to: DeviceSliceMut<'_>,
    );

    /// Copies a part of each row.
    fn copy_rows(&self, copy: RowCopy, from: DeviceSlice<'_>, to: DeviceSliceMut<'_>);
}

/// Rounding to short formats, and storage in 2 bytes.
pub trait PrecisionKernels {
    /// Rounds values in place. Values beyond the greatest of the format become infinite; NaN remains NaN.
    fn round(&self, format: ShortFormat, values: DeviceSliceMut<'_>);

    /// Packs values, rounded, in [`ShortFormat::packed_length`] floats, whose bits have an order that the device chooses
    /// within each [`ShortFormat::GROUP`]: ranges of whole groups, and the last one, are packed and unpacked apart.
    fn pack(&self, format: ShortFormat, values: DeviceSlice<'_>, packed: DeviceSliceMut<'_>);

    /// Writes packed values as f32.
    fn unpack(&self, format: ShortFormat, packed: DeviceSlice<'_>, values: DeviceSliceMut<'_>);
}
