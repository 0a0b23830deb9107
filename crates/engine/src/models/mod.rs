//! [`ModelConfig`]: the built-in models, each a chain of layers.

mod attention;
mod detector;
mod digits;
mod factorisation;
mod gpt;
mod inception;
mod kmeans;
mod normalisation;
mod perceptron;
mod resnet;
mod size;
mod transformer;
mod unet;
mod vgg;

use ronde_core::layout::Role;
use ronde_core::seed::SeedTree;
use serde::{Deserialize, Serialize};

use crate::chain::Chain;
use crate::error::EngineError;
use crate::graph::{GraphLayer, GraphOutline};
use crate::layer::{Layer, LayerExt};
use crate::operations::check_pairs;

pub use normalisation::Normalisation;
pub use size::ModelSize;

/// A model and its size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ModelConfig {
    /// Three convolutions with batch normalisation, for 8 x 8 digits: a chain of 3 layers. Takes
    /// samples of `[channels, height, width]`, 4 x 4 or larger.
    DigitsCnn {
        /// Channels of the first two convolutions; the third has twice as many.
        #[serde(default = "digits_channels")]
        channels: usize,
        /// Probability of dropout before the classifier.
        #[serde(default = "digits_dropout")]
        dropout: f64,
    },
    /// ResNet-18 in torchvision's layout, as a chain of 6 layers. Takes samples of
    /// `[channels, height, width]`. Source: He, Zhang, Ren, Sun, CVPR 2016, table 1.
    #[serde(rename = "resnet18")]
    ResNet18 {
        /// A stem of 3 x 3 with stride 1 and no pooling, for images of about 32 x 32; otherwise 7 x
        /// 7 with stride 2 and pooling, for 224 x 224.
        #[serde(default)]
        small_input: bool,
        /// The normalisation of channels.
        #[serde(default, skip_serializing_if = "is_default")]
        #[cfg_attr(feature = "schema", schemars(extend("default" = Normalisation::default())))]
        normalisation: Normalisation,
    },
    /// ResNet-50 in torchvision's layout, as a chain of 6 layers. Takes samples of
    /// `[channels, height, width]`. Source: as ResNet-18, with the stride in the 3 x 3 convolution.
    #[serde(rename = "resnet50")]
    ResNet50 {
        /// As for ResNet-18.
        #[serde(default)]
        small_input: bool,
        /// The normalisation of channels.
        #[serde(default, skip_serializing_if = "is_default")]
        #[cfg_attr(feature = "schema", schemars(extend("default" = Normalisation::default())))]
        normalisation: Normalisation,
    },
    /// VGG-16 in torchvision's layout, as a chain of 8 layers. Takes samples of
    /// `[channels, height, width]`, 32 x 32 or larger. Source: Simonyan and Zisserman, ICLR 2015,
    /// table 1, column D.
    #[serde(rename = "vgg16")]
    Vgg16 {
        /// Linear modules of width 512 on 1 x 1 positions, for images of about 32 x 32; otherwise
        /// of 4,096 on 7 x 7 positions, for 224 x 224.
        #[serde(default)]
        small_input: bool,
        /// The normalisation of channels; absent: none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        normalisation: Option<Normalisation>,
        /// Probability of dropout after each of the two hidden linear modules.
        #[serde(default = "vgg_dropout")]
        dropout: f64,
    },
    /// Inception-v3 in torchvision's layout with batch normalisation, without the auxiliary classifier, as a chain of 5
    /// layers. Takes samples of `[channels, height, width]`, 75 x 75 or larger, or 7 x 7 with `small_input`. Source:
    /// Szegedy, Vanhoucke, Ioffe, Shlens, Wojna, CVPR 2016.
    #[serde(rename = "inception_v3")]
    InceptionV3 {
        /// First convolutions that keep the size, for images of about 32 x 32; otherwise they reduce it to an eighth,
        /// for 299 x 299.
        #[serde(default)]
        small_input: bool,
        /// The divisor of all numbers of channels: 1, 2, 4, 8 or 16.
        #[serde(default = "inception_divisor")]
        width_divisor: usize,
        /// Probability of dropout before the classifier.
        #[serde(default = "inception_dropout")]
        dropout: f64,
    },
    /// Causal transformer in GPT-2's layout: one layer per block and one at each end. Takes samples
    /// of `[positions]`, token numbers below the number of classes; returns `[positions, classes]`.
    /// Source: Radford et al., 2019.
    Gpt {
        /// Number of blocks.
        layers: usize,
        /// Width of a position; a multiple of the number of heads.
        width: usize,
        /// Number of heads of each attention.
        heads: usize,
        /// Probability of dropout after the embedding and each feed-forward part.
        #[serde(default)]
        dropout: f64,
        /// The output layer uses the embedding's vectors, as in GPT-2: one parameter, whose
        /// gradient is the sum of both uses. One worker then has both layers, also in a pipeline.
        #[serde(default, skip_serializing_if = "is_default")]
        tied: bool,
        /// The number of parts into which attention heads, feed-forward parts and the vectors of tokens are divided, so
        /// that several workers may compute a layer together (`parallel.tensor`). The trained bits depend on it.
        #[serde(default = "one_part", skip_serializing_if = "is_one_part")]
        tensor_parts: u32,
    },
    /// Transformer encoder in BERT's layout, with normalisation before each part: one layer per block
    /// and one at each end. Every position attends to all. Takes samples of `[positions]`, token
    /// numbers below the number of classes; returns `[positions, classes]`. Source: Devlin, Chang,
    /// Lee, Toutanova, NAACL 2019.
    Bert {
        /// Number of blocks.
        layers: usize,
        /// Width of a position; a multiple of the number of heads.
        width: usize,
        /// Number of heads of each attention.
        heads: usize,
        /// Probability of dropout after the embedding and each feed-forward part.
        #[serde(default)]
        dropout: f64,
        /// The number of parts into which attention heads, feed-forward parts and the vectors of tokens are divided, so
        /// that several workers may compute a layer together (`parallel.tensor`). The trained bits depend on it.
        #[serde(default = "one_part", skip_serializing_if = "is_one_part")]
        tensor_parts: u32,
    },
    /// U-Net with batch normalisation, for masks of images: two layers. Takes samples of `[channels,
    /// height, width]`, whose sides are multiples of `2^levels`; returns one logit for each pixel.
    /// Source: Ronneberger, Fischer, Brox, MICCAI 2015; convolutions keep the size, and the way up
    /// repeats pixels.
    #[serde(rename = "unet")]
    UNet {
        /// Channels of the first level; each lower one has twice as many.
        #[serde(default = "unet_channels")]
        channels: usize,
        /// Number of times that the image is halved.
        #[serde(default = "unet_levels")]
        levels: usize,
    },
    /// Single-stage detector with batch normalisation: a layer for each level, and one with the boxes. Takes samples of
    /// `[channels, height, width]`, whose sides are multiples of `2^levels`; returns four numbers and a logit for each
    /// class for every square of `2^levels` pixels, see [`DetectedImages`](crate::DetectedImages). Source: Redmon,
    /// Divvala, Girshick, Farhadi, CVPR 2016, with one box for each cell.
    Detector {
        /// Channels of the first level; each lower one has twice as many.
        #[serde(default = "detector_channels")]
        channels: usize,
        /// Number of times that the image is halved.
        #[serde(default = "detector_levels")]
        levels: usize,
    },
    /// Transformer with encoder and decoder: one layer per block and one at each end. Takes samples
    /// of `[source + target]`: the source text, then the target text up to the predicted token;
    /// returns `[target, classes]`. Normalises before each part. Source: Vaswani et al., NeurIPS
    /// 2017.
    Transformer {
        /// Number of positions of the source text in a sample.
        source: usize,
        /// The token that pads short source texts: trailing padding is not attended to (except at
        /// the first position). Absent: all positions are. Padding of targets is
        /// [`IGNORED`](crate::IGNORED).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        padding: Option<u32>,
        /// Number of blocks of the encoder, and of the decoder.
        layers: usize,
        /// Width of a position; a multiple of the number of heads.
        width: usize,
        /// Number of heads of each attention.
        heads: usize,
        /// Probability of dropout after the embedding and each feed-forward part.
        #[serde(default)]
        dropout: f64,
        /// The number of parts into which attention heads, feed-forward parts and the vectors of tokens are divided, so
        /// that several workers may compute a layer together (`parallel.tensor`). The trained bits depend on it.
        #[serde(default = "one_part", skip_serializing_if = "is_one_part")]
        tensor_parts: u32,
    },
    /// Perceptron with rectifiers: one layer per linear module. Takes samples of 1 to 3 dimensions.
    Mlp {
        /// Width of each hidden layer.
        hidden: Vec<usize>,
        /// The number of parts into which the outputs of each hidden layer are divided, so
        /// that several workers may compute a layer together (`parallel.tensor`). The trained bits depend on it.
        #[serde(default = "one_part", skip_serializing_if = "is_one_part")]
        tensor_parts: u32,
    },
    /// k-means: the squared distances from the centres of clusters, one layer. Takes samples of any
    /// shape; returns `[clusters]` and does not use targets. Trained on whole epochs by plain gradient
    /// descent with a learning rate of 1, it is Lloyd's algorithm; on smaller batches, mini-batch
    /// k-means. Sources: Lloyd, IEEE Transactions on Information Theory 28(2), 1982; Bottou and
    /// Bengio, NeurIPS 1995.
    #[serde(rename = "kmeans")]
    KMeans {
        /// Number of clusters.
        clusters: usize,
    },
    /// Matrix factorisation with biases, one layer. Takes samples of `[2]`, the numbers of a user and
    /// an item; returns a value. Source: Koren, Bell, Volinsky, IEEE Computer 42(8), 2009.
    MatrixFactorisation {
        /// Number of users.
        users: usize,
        /// Number of items.
        items: usize,
        /// Number of factors of each user and item.
        factors: usize,
    },
    /// A single linear layer: softmax regression for classes, linear regression for values. Takes
    /// samples of 1 to 3 dimensions.
    Linear {},
}

fn one_part() -> u32 {
    1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde requires"
)]
fn is_one_part(parts: &u32) -> bool {
    *parts == 1
}

fn digits_channels() -> usize {
    16
}

fn digits_dropout() -> f64 {
    0.25
}

fn vgg_dropout() -> f64 {
    0.5
}

fn inception_divisor() -> usize {
    1
}

fn inception_dropout() -> f64 {
    0.5
}

fn unet_channels() -> usize {
    16
}

fn unet_levels() -> usize {
    3
}

fn detector_channels() -> usize {
    16
}

fn detector_levels() -> usize {
    3
}

impl ModelConfig {
    /// Returns the value of `kind` in a configuration.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::DigitsCnn { .. } => "digits_cnn",
            Self::ResNet18 { .. } => "resnet18",
            Self::ResNet50 { .. } => "resnet50",
            Self::Vgg16 { .. } => "vgg16",
            Self::InceptionV3 { .. } => "inception_v3",
            Self::Gpt { .. } => "gpt",
            Self::Bert { .. } => "bert",
            Self::UNet { .. } => "unet",
            Self::Detector { .. } => "detector",
            Self::Transformer { .. } => "transformer",
            Self::KMeans { .. } => "kmeans",
            Self::MatrixFactorisation { .. } => "matrix_factorisation",
            Self::Mlp { .. } => "mlp",
            Self::Linear {} => "linear",
        }
    }

    /// Checks the features of samples, one after the other, whose values select rows of a table of the model; a training step finds the
    /// same.
    ///
    /// # Errors
    /// A number without a row.
    pub fn check_features(&self, features: &[f32]) -> Result<(), EngineError> {
        match *self {
            Self::MatrixFactorisation { users, items, .. } => check_pairs(features, [users, items]),
            _ => Ok(()),
        }
    }

    /// Builds the model for samples of `input_shape` (without the number of samples) and `classes`
    /// outputs. Initial weights depend only on the seed and the tensors' names.
    ///
    /// # Errors
    /// When the model does not accept such samples, or a size is zero.
    pub fn build(
        &self,
        input_shape: &[usize],
        classes: u32,
        seeds: &SeedTree,
    ) -> Result<Chain, EngineError> {
        let layers = self.outline(input_shape, classes)?.into_iter();
        let layers =
            layers.map(|layer| -> Box<dyn Layer> { Box::new(GraphLayer::new(layer, seeds)) });
        let chain = Chain::new(layers.collect())?;
        Ok(if matches!(self, Self::Gpt { tied: true, .. }) {
            chain.tied("embedding.token")
        } else {
            chain
        })
    }

    /// Describes the layers of the model that [`ModelConfig::build`] would allocate.
    ///
    /// # Errors
    /// As [`ModelConfig::build`].
    pub fn outline(
        &self,
        input_shape: &[usize],
        classes: u32,
    ) -> Result<Vec<GraphOutline>, EngineError> {
        let classes = classes as usize;
        let layers = if classes == 0 || input_shape.contains(&0) {
            refuse(format!(
                "invalid sample shape {input_shape:?} with {classes} classes: expected at least 1 of each"
            ))
        } else {
            self.layers(input_shape, classes)
        };
        layers.map_err(|error| self.refused(error))
    }

    /// Adds the kind of the model to an error of one of its parts.
    fn refused(&self, error: EngineError) -> EngineError {
        EngineError::Model {
            model: self.kind().to_owned(),
            problem: match error {
                EngineError::Model { problem, .. } => problem,
                other => other.to_string(),
            },
        }
    }

    fn layers(&self, input_shape: &[usize], classes: usize) -> Layers {
        match *self {
            Self::DigitsCnn { channels, dropout } => {
                digits::layers(input_shape, classes, channels, dropout)
            }
            Self::ResNet18 {
                small_input,
                normalisation,
            } => {
                let form = resnet::ResNetShape {
                    blocks: [2, 2, 2, 2],
                    is_bottleneck: false,
                    small_input,
                    normalisation,
                };
                resnet::layers(input_shape, classes, form)
            }
            Self::ResNet50 {
                small_input,
                normalisation,
            } => {
                let form = resnet::ResNetShape {
                    blocks: [3, 4, 6, 3],
                    is_bottleneck: true,
                    small_input,
                    normalisation,
                };
                resnet::layers(input_shape, classes, form)
            }
            Self::Vgg16 {
                small_input,
                normalisation,
                dropout,
            } => vgg::layers(input_shape, classes, (small_input, normalisation, dropout)),
            Self::InceptionV3 {
                small_input,
                width_divisor,
                dropout,
            } => inception::layers(input_shape, classes, (small_input, width_divisor, dropout)),
            Self::Gpt { .. } | Self::Bert { .. } | Self::Transformer { .. } => {
                self.text_layers(input_shape, classes)
            }
            Self::UNet { channels, levels } => unet::layers(input_shape, channels, levels),
            Self::Detector { channels, levels } => {
                detector::layers(input_shape, classes, channels, levels)
            }
            Self::KMeans { clusters } => kmeans::layers(input_shape, clusters),
            Self::MatrixFactorisation {
                users,
                items,
                factors,
            } => factorisation::layers(input_shape, [users, items], factors),
            Self::Mlp {
                ref hidden,
                tensor_parts,
            } => perceptron::layers(input_shape, classes, hidden, tensor_parts),
            Self::Linear {} => perceptron::layers(input_shape, classes, &[], 1),
        }
    }

    fn text_layers(&self, input_shape: &[usize], classes: usize) -> Layers {
        match *self {
            Self::Gpt {
                layers,
                width,
                heads,
                dropout,
                tied,
                tensor_parts,
            } => {
                let form = transformer_form(width, heads, dropout, tensor_parts);
                let predicts = gpt::TextModel::Next { tied };
                gpt::layers(input_shape, classes, layers, form, predicts)
            }
            Self::Bert {
                layers,
                width,
                heads,
                dropout,
                tensor_parts,
            } => {
                let form = transformer_form(width, heads, dropout, tensor_parts);
                gpt::layers(input_shape, classes, layers, form, gpt::TextModel::Masked)
            }
            Self::Transformer {
                source,
                padding,
                layers,
                width,
                heads,
                dropout,
                tensor_parts,
            } => {
                let form = transformer_form(width, heads, dropout, tensor_parts);
                let text = transformer::SourceText { source, padding };
                transformer::layers(input_shape, classes, text, layers, form)
            }
            _ => refuse("it is not a model of texts".to_owned()),
        }
    }

    /// Returns the number of training samples from which [`ModelConfig::initialise`] computes the
    /// initial state; 0 for a model whose initial state depends on the seed alone.
    #[must_use]
    pub fn initial_samples(&self) -> usize {
        match self {
            Self::KMeans { clusters } => kmeans::initial_samples(*clusters),
            _ => 0,
        }
    }

    /// Sets the part of a built model's initial state that depends on the data: the centres of
    /// clusters, by k-means++. `samples` are training samples, row-major. Cost: for k-means, the
    /// distances of all samples from about `clusters * (2 + ln clusters)` of them.
    ///
    /// # Errors
    /// When there are fewer samples than clusters.
    pub fn initialise(
        &self,
        chain: &mut Chain,
        samples: &[f32],
        seeds: &SeedTree,
    ) -> Result<(), EngineError> {
        let Self::KMeans { clusters } = *self else {
            return Ok(());
        };
        let elements = chain.layout().elements(Role::Parameter);
        let width = elements / clusters.max(1);
        let centres = kmeans::initial_centres(samples, width, clusters, seeds);
        let centres = centres.map_err(|error| self.refused(error))?;
        chain.load(&centres, std::slice::from_ref(&(0..elements)));
        Ok(())
    }

    /// Returns the number of parts into which layers of the model are divided.
    #[must_use]
    pub fn tensor_parts(&self) -> u32 {
        match self {
            Self::Gpt { tensor_parts, .. }
            | Self::Bert { tensor_parts, .. }
            | Self::Transformer { tensor_parts, .. }
            | Self::Mlp { tensor_parts, .. } => *tensor_parts,
            _ => 1,
        }
    }

    /// Returns the same model with whole layers, whose tensors are those of which the parts are parts.
    #[must_use]
    pub fn with_whole_layers(&self) -> Self {
        let mut whole = self.clone();
        if let Self::Gpt { tensor_parts, .. }
        | Self::Bert { tensor_parts, .. }
        | Self::Transformer { tensor_parts, .. }
        | Self::Mlp { tensor_parts, .. } = &mut whole
        {
            *tensor_parts = 1;
        }
        whole
    }

    /// Returns whether the loss of the model uses the targets of samples.
    #[must_use]
    pub fn uses_targets(&self) -> bool {
        !matches!(self, Self::KMeans { .. })
    }

    /// Returns whether the model has a choice of its normalisation.
    #[must_use]
    pub fn has_normalisation(&self) -> bool {
        matches!(
            self,
            Self::ResNet18 { .. } | Self::ResNet50 { .. } | Self::Vgg16 { .. }
        )
    }

    /// Returns whether a worker's shards run together, as a [`crate::LockStep`].
    #[must_use]
    pub fn runs_shards_together(&self) -> bool {
        let normalisation = match self {
            Self::ResNet18 { normalisation, .. } | Self::ResNet50 { normalisation, .. } => {
                Some(*normalisation)
            }
            Self::Vgg16 { normalisation, .. } => *normalisation,
            Self::KMeans { .. } => return true,
            _ => None,
        };
        normalisation == Some(Normalisation::SynchronisedBatch)
    }
}

/// The inner width of the feed-forward parts is four times the width of a position.
fn transformer_form(
    width: usize,
    heads: usize,
    dropout: f64,
    parts: u32,
) -> attention::TransformerShape {
    attention::TransformerShape {
        width,
        heads,
        inner: width.saturating_mul(4),
        dropout,
        parts,
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The layers of a model, or why it cannot be built.
type Layers = Result<Vec<GraphOutline>, EngineError>;

/// Returns the error of a model that cannot be built; [`ModelConfig::refused`] adds its kind.
fn refuse<T>(problem: String) -> Result<T, EngineError> {
    Err(EngineError::Model {
        model: String::new(),
        problem,
    })
}

/// Checks that samples are images `[channels, height, width]` of at least the given side.
fn image(input_shape: &[usize], side: usize) -> Result<(), EngineError> {
    match *input_shape {
        [_, height, width] if height >= side && width >= side => Ok(()),
        _ => refuse(format!(
            "invalid sample shape {input_shape:?}: expected [channels, height, width], {side} x {side} or larger"
        )),
    }
}

#[cfg(test)]
mod every;
#[cfg(test)]
mod tests;
