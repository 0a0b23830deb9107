//! [`Embedding`]: vectors of tokens and positions, a layer without the engine's graph.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::Shard;
use ronde_core::layout::{Role, StateLayout, TensorEntry};
use ronde_core::seed::SeedTree;

use super::embedding_table::{EmbeddingTable, EmbeddingVectors};
use super::layer_size::LayerSize;
use crate::initial::{Initial, fill};
use crate::ops::memory::take;
use crate::pending_shards::PendingShards;
use crate::{Activation, EngineError, ForwardContext, Layer, LayerCost, Mode};

/// Adds a vector for each token and one for each position, followed by dropout. Takes token numbers
/// `[N, T]`. A number beyond the table is treated as the last token: a generated number must not
/// end the process.
///
/// With [`Padding`] the output has an additional position, which holds the length of the source
/// text: see [`Padding::write`].
pub(super) struct Embedding {
    layout: StateLayout,
    table: Arc<EmbeddingTable>,
    form: EmbeddingShape,
    /// Whether the output layer uses the table as well.
    is_tied: bool,
    size: LayerSize,
    pending: PendingShards<SavedEmbedding>,
}

/// The lengths of an embedding.
#[derive(Debug, Clone, Copy)]
pub(super) struct EmbeddingShape {
    pub(super) tokens: usize,
    pub(super) places: usize,
    pub(super) width: usize,
    pub(super) dropout: f64,
    pub(super) padding: Option<Padding>,
}

impl EmbeddingShape {
    /// Returns the number of positions of the output.
    fn places_out(&self) -> usize {
        self.places + usize::from(self.padding.is_some())
    }
}

/// The token that pads short source texts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Padding {
    pub(super) token: u32,
    /// The number of positions of the source text, which comes first.
    pub(super) source: usize,
}

/// A length is encoded as two numbers below this, which the short formats represent exactly.
const DIGIT: usize = 256;

impl Padding {
    /// Checks the settings.
    pub(super) fn check(&self, tokens: usize, width: usize) -> Result<(), String> {
        if self.token as usize >= tokens || width < 2 || self.source >= DIGIT * DIGIT {
            return Err(format!(
                "invalid padding = {} with {tokens} tokens, width = {width}, source = {}: expected a token number, a width of at least 2 and a source below {}",
                self.token,
                self.source,
                DIGIT * DIGIT
            ));
        }
        Ok(())
    }

    /// Writes the number of tokens of a source before its padding.
    fn write(&self, tokens: &[u32], to: &mut [f32]) {
        let source = &tokens[..self.source];
        let last = source.iter().rposition(|token| *token != self.token);
        let length = last.map_or(0, |last| last + 1);
        to.fill(0.0);
        to[0] = (length % DIGIT) as f32;
        to[1] = (length / DIGIT) as f32;
    }

    /// Reads the length written by `write`.
    pub(super) fn read(from: &[f32]) -> usize {
        from[0] as usize + DIGIT * from[1] as usize
    }
}

/// The values that backward of a shard needs.
struct SavedEmbedding {
    tokens: Vec<u32>,
    samples: usize,
    /// The factors of the dropout; empty without one.
    mask: Vec<f32>,
}

impl Embedding {
    /// Draws the initial vectors, keyed by the names `embedding.token` and `embedding.position`.
    pub(super) fn new(
        form: EmbeddingShape,
        is_tied: bool,
        size: &LayerSize,
        seeds: &SeedTree,
    ) -> Self {
        let tensors = [("token", form.tokens), ("position", form.places)].map(|(name, rows)| {
            let name = format!("embedding.{name}");
            TensorEntry::f32(name, &[rows, form.width], Role::Parameter)
        });
        let mut tables = EmbeddingVectors {
            token: vec![0.0; form.tokens * form.width],
            position: vec![0.0; form.places * form.width],
            width: form.width,
        };
        let values = [&mut tables.token, &mut tables.position];
        for (tensor, values) in tensors.iter().zip(values) {
            fill(tensor, Initial::TRANSFORMER, seeds, values);
        }
        Self {
            layout: StateLayout {
                tensors: tensors.to_vec(),
            },
            table: Arc::new(EmbeddingTable::new(tables)),
            form,
            is_tied,
            size: size.clone(),
            pending: PendingShards::new("embedding", false),
        }
    }

    /// Returns the vectors, for an output layer that shares them.
    pub(super) fn table(&self) -> Arc<EmbeddingTable> {
        self.table.clone()
    }

    /// Writes the vectors of one sample's tokens.
    fn embed(&self, tables: &EmbeddingVectors, tokens: &[u32], to: &mut [f32]) {
        let width = self.form.width;
        let (texts, rest) = to.split_at_mut(tokens.len() * width);
        let positions = tables.position.chunks_exact(width);
        let places = texts.chunks_exact_mut(width).zip(tokens).zip(positions);
        for ((to, token), position) in places {
            let vector = &tables.token[*token as usize * width..][..width];
            for ((to, vector), position) in to.iter_mut().zip(vector).zip(position) {
                *to = vector + position;
            }
        }
        if let Some(padding) = self.form.padding {
            padding.write(tokens, rest);
        }
    }

    /// Multiplies the positions of texts by the factors of the dropout.
    fn drop_out(&self, mask: &[f32], values: &mut [f32]) {
        let width = self.form.width;
        let masks = mask.chunks_exact(self.form.places * width);
        let samples = values.chunks_exact_mut(self.form.places_out() * width);
        for (mask, sample) in masks.zip(samples) {
            sample.iter_mut().zip(mask).for_each(|(x, m)| *x *= m);
        }
    }
}

impl Layer for Embedding {
    fn layout(&self) -> &StateLayout {
        &self.layout
    }

    fn load(&mut self, state: &[f32], ranges: &[Range<usize>]) {
        self.table.change(|tables| {
            tables.token.copy_from_slice(&state[ranges[0].clone()]);
            tables.position.copy_from_slice(&state[ranges[1].clone()]);
        });
    }

    fn save(&self, state: &mut [f32], ranges: &[Range<usize>]) {
        let tables = self.table.now();
        state[ranges[0].clone()].copy_from_slice(&tables.token);
        state[ranges[1].clone()].copy_from_slice(&tables.position);
    }

    fn forward(
        &mut self,
        input: Activation,
        context: &ForwardContext,
    ) -> Result<Activation, EngineError> {
        let (form, samples) = (self.form, input.samples());
        self.pending.check_samples(input.shape(), &[form.places])?;
        let last = form.tokens as f32 - 1.0;
        let tokens = input.as_slice().iter().map(|x| x.clamp(0.0, last) as u32);
        let tokens: Vec<u32> = tokens.collect();
        let row = form.places_out() * form.width;
        let mut values = take(samples * row);
        let tables = self.table.now();
        let texts = tokens.chunks_exact(form.places);
        for (tokens, to) in texts.zip(values.chunks_exact_mut(row)) {
            self.embed(&tables, tokens, to);
        }
        let mask = context.dropout_factors(tokens.len() * form.width, form.dropout, 0);
        if let Some(mask) = &mask {
            self.drop_out(mask, &mut values);
        }
        if context.mode == Mode::Train {
            let kept = SavedEmbedding {
                tokens,
                samples,
                mask: mask.unwrap_or_default(),
            };
            self.pending.begin(context.shard, kept);
        }
        let shape = [samples, form.places_out(), form.width];
        Ok(Activation::from_host(&shape, values))
    }

    /// The gradient of a tied table starts with the output layer's part, to which the embedding's
    /// is added.
    fn backward(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError> {
        let kept = self.pending.end(shard, needs_input_gradient)?;
        let (places, width) = (self.form.places, self.form.width);
        let shape = [kept.samples, self.form.places_out(), width];
        self.pending.check_gradient(grad_output.shape(), &shape)?;
        let mut given = grad_output.into_host();
        self.drop_out(&kept.mask, &mut given);
        let of_position = &mut gradients[ranges[1].clone()];
        of_position.fill(0.0);
        for sample in given.chunks_exact(self.form.places_out() * width) {
            let found = of_position.iter_mut().zip(sample);
            found.for_each(|(sum, value)| *sum += value);
        }
        let of_token = &mut gradients[ranges[0].clone()];
        of_token.fill(0.0);
        for (tokens, sample) in kept
            .tokens
            .chunks_exact(places)
            .zip(given.chunks_exact(self.form.places_out() * width))
        {
            for (token, row) in tokens.iter().zip(sample.chunks_exact(width)) {
                let to = &mut of_token[*token as usize * width..][..width];
                to.iter_mut()
                    .zip(row)
                    .for_each(|(sum, value)| *sum += value);
            }
        }
        if self.is_tied && kept.samples > 0 {
            self.table.add_found(shard, of_token)?;
        }
        crate::ops::memory::give(given);
        Ok(None)
    }

    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        super::cost_per_sample(&self.size.output, self.size.kept)(input_shape)
    }

    fn discard(&mut self) {
        self.pending.clear();
        self.table.forget();
    }
}

#[cfg(test)]
mod tests {
    use burn::module::{Module, Param};
    use burn::tensor::{Int, Tensor, module};

    use super::*;
    use crate::testing::{arena, bits, hashed, state, training};
    use crate::{BurnLayer, training_device};

    const FORM: EmbeddingShape = EmbeddingShape {
        tokens: 7,
        places: 5,
        width: 3,
        dropout: 0.25,
        padding: None,
    };

    fn embedding(form: EmbeddingShape) -> Embedding {
        let size = LayerSize {
            output: vec![form.places_out(), form.width],
            ..LayerSize::default()
        };
        Embedding::new(form, false, &size, &SeedTree::new(3))
    }

    fn tokens(samples: usize) -> Activation {
        let tokens = hashed(1, samples * 5);
        let tokens = tokens.into_iter().map(|x| (x * 4.0 + 4.0).floor());
        Activation::from_host(&[samples, 5], tokens.collect())
    }

    #[derive(Module, Debug)]
    struct Vectors {
        token: Param<Tensor<2>>,
        position: Param<Tensor<2>>,
    }

    /// Returns output and gradients of one shard, compared as numbers, because a sum of one element
    /// may be a negative zero.
    fn outcome(layer: &mut dyn Layer, samples: usize) -> [Vec<f32>; 2] {
        let context = training(1, 2);
        let output = layer.forward(tokens(samples), &context).unwrap();
        let given = hashed(2, output.as_slice().len());
        let given = Activation::from_host(output.shape(), given);
        let arena = arena(layer);
        let mut found = vec![0.0; arena.len()];
        let ranges = arena.ranges();
        layer
            .backward(context.shard, given, &mut found, ranges, false)
            .unwrap();
        [output.into_host(), found]
    }

    #[test]
    fn it_agrees_with_the_engines_operations() {
        let mut own = embedding(FORM);
        let zeros = |rows| Param::from_tensor(Tensor::zeros([rows, 3], &training_device()));
        let vectors = Vectors {
            token: zeros(7),
            position: zeros(5),
        };
        let run = |vectors: &Vectors, x: Tensor<2>, context: &ForwardContext| {
            let numbers: Tensor<2, Int> = x.clamp(0.0, 6.0).int();
            let y = module::embedding(vectors.token.val(), numbers);
            context.dropout(y + vectors.position.val().unsqueeze(), 0.25, 0)
        };
        let mut graph = BurnLayer::new(vectors, run)
            .named("embedding")
            .with_initial_weights(&SeedTree::new(3), Initial::TRANSFORMER);
        assert_eq!(own.layout(), graph.layout());
        assert_eq!(bits(&state(&own).0), bits(&state(&graph).0));
        for samples in [4, 1] {
            let expected = outcome(&mut graph, samples);
            assert_eq!(outcome(&mut own, samples), expected, "{samples} samples");
        }
        let [output, found] = outcome(&mut own, 0);
        assert!(output.is_empty() && found.iter().all(|value| *value == 0.0));
    }

    #[test]
    fn invalid_token_numbers_are_tolerated_and_misuse_is_reported() {
        let mut layer = embedding(FORM);
        let wild = vec![-1.0, f32::NAN, 1e9, 6.9, f32::INFINITY];
        let input = Activation::from_host(&[1, 5], wild);
        let output = layer.forward(input, &ForwardContext::evaluate()).unwrap();
        let expected = Activation::from_host(&[1, 5], vec![0.0, 0.0, 6.0, 6.0, 6.0]);
        let expected = layer.forward(expected, &ForwardContext::evaluate());
        assert_eq!(output.as_slice(), expected.unwrap().as_slice());
        let short = Activation::from_host(&[1, 4], vec![0.0; 4]);
        assert!(layer.forward(short, &training(0, 0)).is_err());
        let given = Activation::from_host(&[1, 5, 3], vec![0.0; 15]);
        let ranges = [0..21, 21..36];
        let mut found = vec![0.0; 36];
        let back = layer.backward(Shard(0), given, &mut found, &ranges, false);
        assert!(matches!(back, Err(EngineError::NotInFlight { .. })));
    }

    #[test]
    fn lengths_of_sources_read_back_as_written() {
        let padding = Padding {
            token: 4,
            source: 700,
        };
        assert!(padding.check(5, 2).is_ok());
        for (tokens, width, source) in [(4, 2, 700), (5, 1, 700), (5, 2, 1 << 16)] {
            let other = Padding { source, ..padding };
            assert!(other.check(tokens, width).is_err());
        }
        for length in [0, 1, 255, 256, 257, 699, 700] {
            let mut tokens = vec![4; 702];
            tokens[..length].fill(1);
            tokens[..length / 2].fill(4);
            tokens[700..].fill(1);
            let mut row = [f32::NAN; 3];
            padding.write(&tokens, &mut row);
            assert_eq!(Padding::read(&row), length);
            let mut short = row;
            crate::Precision::Bf16.round(&mut short);
            assert_eq!(short, row);
        }
        let form = EmbeddingShape {
            padding: Some(Padding {
                token: 4,
                source: 2,
            }),
            ..FORM
        };
        let output = embedding(form).forward(tokens(2), &training(0, 0)).unwrap();
        assert_eq!(output.shape(), [2, 6, 3]);
        let lengths = [0, 1].map(|sample| Padding::read(&output.as_slice()[sample * 18 + 15..]));
        assert!(lengths.iter().all(|length| *length <= 2), "{lengths:?}");
    }
}
