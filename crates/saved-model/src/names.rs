//! [`Naming`]: the names and layouts of tensors in other libraries, by table.
//!
//! A [`Counterpart`] describes one of our tensors in another library's file: its name, whether the matrix is transposed, and
//! which columns it has if the library joins several of ours. The tables cover torchvision's ResNet and VGG and Hugging
//! Face's GPT-2; other models have no counterpart.

use std::ops::Range;

use ronde_engine::ModelConfig;

/// The naming of tensors in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Naming {
    /// The names and shapes of this project.
    Ronde,
    /// Those of torchvision's modules: resnet18, resnet50, vgg16.
    Torchvision,
    /// Those of Hugging Face's `GPT2LMHeadModel`.
    HuggingFace,
}

impl Naming {
    /// All namings.
    pub const ALL: [Self; 3] = [Self::Ronde, Self::Torchvision, Self::HuggingFace];

    /// Returns the naming of the library that has a module like a model.
    #[must_use]
    pub fn counterpart(model: &ModelConfig) -> Self {
        match model {
            ModelConfig::ResNet18 { .. }
            | ModelConfig::ResNet50 { .. }
            | ModelConfig::Vgg16 { .. } => Self::Torchvision,
            ModelConfig::Gpt { .. } => Self::HuggingFace,
            _ => Self::Ronde,
        }
    }

    /// Returns the name in options: `ronde`, `torchvision` or `huggingface`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ronde => "ronde",
            Self::Torchvision => "torchvision",
            Self::HuggingFace => "huggingface",
        }
    }

    /// Describes a tensor of a model in this naming; `None` if the naming has no module like the model.
    pub(crate) fn of(self, model: &ModelConfig, tensor: &str) -> Option<Counterpart> {
        match (self, model) {
            (Self::Ronde, _) => Some(Counterpart::named(tensor)),
            (Self::Torchvision, ModelConfig::ResNet18 { .. } | ModelConfig::ResNet50 { .. }) => {
                Some(resnet(tensor))
            }
            (Self::Torchvision, ModelConfig::Vgg16 { normalisation, .. }) => {
                vgg16(tensor, normalisation.is_some())
            }
            (Self::HuggingFace, ModelConfig::Gpt { width, tied, .. }) => {
                gpt2(tensor, *width, *tied)
            }
            _ => None,
        }
    }

    /// Returns whether a tensor of this name and shape changes no output, so that no model needs it: counters, numbers of positions,
    /// and the causal masks of GPT-2.
    pub(crate) fn is_harmless(self, name: &str, shape: &[usize]) -> bool {
        let parts: Vec<&str> = name.split('.').collect();
        match parts.as_slice() {
            [.., "num_batches_tracked" | "position_ids"] => true,
            [.., "attn", "bias"] => self == Self::HuggingFace && matches!(shape, [1, 1, _, _]),
            [.., "attn", "masked_bias"] => {
                self == Self::HuggingFace && shape.iter().product::<usize>() == 1
            }
            _ => false,
        }
    }
}

/// One of our tensors in another library's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counterpart {
    /// The name in the file.
    pub(crate) name: String,
    /// A second name under which a file may have the same values.
    pub(crate) alias: Option<String>,
    /// The tensor whose values a file without this one means.
    pub(crate) fallback: Option<String>,
    /// Whether the two dimensions are exchanged.
    pub(crate) is_transposed: bool,
    /// The range of our columns in the last dimension of the file's tensor, and the length of that dimension; `None`:
    /// all.
    pub(crate) columns: Option<(Range<usize>, usize)>,
    /// Whether the file's tensor may have more rows, that start with ours.
    pub(crate) may_have_more_rows: bool,
}

/// The prefix that files of a whole `GPT2LMHeadModel` have, and files of its inner module lack.
const INNER_PREFIX: &str = "transformer.";

impl Counterpart {
    pub(crate) fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            alias: None,
            fallback: None,
            is_transposed: false,
            columns: None,
            may_have_more_rows: false,
        }
    }

    /// Returns the names under which a file may have the tensor, the usual one first. All that a file has must have the same values.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let names = std::iter::once(self.name.as_str()).chain(self.alias.as_deref());
        names.flat_map(with_and_without_prefix)
    }

    /// Returns the names of the tensor whose values a file means that has none of [`Counterpart::names`].
    pub(crate) fn fallback_names(&self) -> impl Iterator<Item = &str> {
        let fallback = self.fallback.as_deref().into_iter();
        fallback.flat_map(with_and_without_prefix)
    }

    /// Returns the shape of the file's tensor for our shape.
    pub(crate) fn shape_of(&self, ours: &[usize]) -> Vec<usize> {
        let mut shape = ours.to_vec();
        if self.is_transposed {
            shape.reverse();
        }
        if let (Some((_, length)), Some(last)) = (&self.columns, shape.last_mut()) {
            *last = *length;
        }
        shape
    }

    fn transposed(mut self) -> Self {
        self.is_transposed = true;
        self
    }
}

fn with_and_without_prefix(name: &str) -> impl Iterator<Item = &str> {
    std::iter::once(name).chain(name.strip_prefix(INNER_PREFIX))
}

/// Normalisations are called `weight` and `bias` in PyTorch.
fn affine(tensor: &str) -> String {
    let renamed = [(".gamma", ".weight"), (".beta", ".bias")]
        .into_iter()
        .find_map(|(ours, theirs)| Some(format!("{}{theirs}", tensor.strip_suffix(ours)?)));
    renamed.unwrap_or_else(|| tensor.to_owned())
}

/// Linear weights of PyTorch are `[outputs, inputs]`.
fn resnet(tensor: &str) -> Counterpart {
    let name = affine(tensor)
        .replace("downsample.conv.", "downsample.0.")
        .replace("downsample.bn.", "downsample.1.");
    let counterpart = Counterpart::named(name);
    match tensor {
        "fc.weight" => counterpart.transposed(),
        _ => counterpart,
    }
}

/// The numbers of convolutions of VGG-16's blocks.
const VGG_BLOCKS: [usize; 5] = [2, 2, 3, 3, 3];

/// torchvision numbers all modules of `features` and of `classifier`.
fn vgg16(tensor: &str, is_normalised: bool) -> Option<Counterpart> {
    let (layer, rest) = tensor.split_once('.')?;
    if let Some(number) = layer.strip_prefix("classifier") {
        let number: usize = number.parse().ok()?;
        let counterpart = Counterpart::named(format!("classifier.{}.{rest}", 3 * (number - 1)));
        return Some(match rest {
            "weight" => counterpart.transposed(),
            _ => counterpart,
        });
    }
    let block: usize = layer.strip_prefix("features")?.parse().ok()?;
    let (index, rest) = rest.split_once('.')?;
    let (part, rest) = rest.split_once('.')?;
    let modules = if is_normalised { 3 } else { 2 };
    let before: usize = VGG_BLOCKS
        .iter()
        .take(block.checked_sub(1)?)
        .map(|count| count * modules + 1)
        .sum();
    let module = before + modules * index.parse::<usize>().ok()? + usize::from(part == "norm");
    let name = format!("features.{module}.{rest}");
    Some(Counterpart::named(affine(&name)))
}

/// GPT-2's linear weights are `[inputs, outputs]`, as ours; one of them has queries, keys and values.
fn gpt2(tensor: &str, width: usize, is_tied: bool) -> Option<Counterpart> {
    const VECTORS: &str = "transformer.wte.weight";
    const HEAD: &str = "lm_head.weight";
    let named = |name: &str| Some(Counterpart::named(name));
    match tensor {
        "embedding.token" => {
            return Some(Counterpart {
                alias: is_tied.then(|| HEAD.to_owned()),
                ..Counterpart::named(VECTORS)
            });
        }
        "embedding.position" => {
            return Some(Counterpart {
                may_have_more_rows: true,
                ..Counterpart::named("transformer.wpe.weight")
            });
        }
        "head.norm.gamma" => return named("transformer.ln_f.weight"),
        "head.norm.beta" => return named("transformer.ln_f.bias"),
        "head.output.weight" => {
            return Some(Counterpart {
                fallback: Some(VECTORS.to_owned()),
                ..Counterpart::named(HEAD).transposed()
            });
        }
        _ => {}
    }
    let (block, rest) = tensor.strip_prefix("block")?.split_once('.')?;
    let block = block.parse::<usize>().ok()?.checked_sub(1)?;
    let (module, kind) = rest.rsplit_once('.')?;
    let in_block =
        |name: &str, kind: &str| Counterpart::named(format!("transformer.h.{block}.{name}.{kind}"));
    let columns = |columns: Range<usize>| Counterpart {
        columns: Some((columns, 3 * width)),
        ..in_block("attn.c_attn", kind)
    };
    let of_norm = affine(&format!(".{kind}"));
    let of_norm = of_norm.trim_start_matches('.');
    Some(match module {
        "attention.norm" => in_block("ln_1", of_norm),
        "attention.query" => columns(0..width),
        "attention.key_value" => columns(width..3 * width),
        "attention.output" => in_block("attn.c_proj", kind),
        "feed_forward.norm" => in_block("ln_2", of_norm),
        "feed_forward.up" => in_block("mlp.c_fc", kind),
        "feed_forward.down" => in_block("mlp.c_proj", kind),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(text: &str) -> ModelConfig {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn names_are_those_of_the_libraries() {
        let resnet = model(r#"{"kind": "resnet18"}"#);
        let plain = model(r#"{"kind": "vgg16"}"#);
        let vgg = model(r#"{"kind": "vgg16", "normalisation": "batch"}"#);
        let gpt = model(r#"{"kind": "gpt", "layers": 2, "width": 4, "heads": 2}"#);
        for (naming, model, ours, theirs) in [
            (Naming::Torchvision, &resnet, "bn1.gamma", "bn1.weight"),
            (
                Naming::Torchvision,
                &resnet,
                "layer2.0.downsample.bn.running_var",
                "layer2.0.downsample.1.running_var",
            ),
            (
                Naming::Torchvision,
                &plain,
                "features1.1.conv.bias",
                "features.2.bias",
            ),
            (
                Naming::Torchvision,
                &plain,
                "features5.2.conv.weight",
                "features.28.weight",
            ),
            (
                Naming::Torchvision,
                &plain,
                "classifier3.weight",
                "classifier.6.weight",
            ),
            (
                Naming::Torchvision,
                &vgg,
                "features5.2.norm.gamma",
                "features.41.weight",
            ),
            (
                Naming::Torchvision,
                &vgg,
                "features2.0.conv.weight",
                "features.7.weight",
            ),
            (
                Naming::HuggingFace,
                &gpt,
                "block2.feed_forward.norm.beta",
                "transformer.h.1.ln_2.bias",
            ),
            (
                Naming::HuggingFace,
                &gpt,
                "block1.attention.key_value.weight",
                "transformer.h.0.attn.c_attn.weight",
            ),
            (Naming::Ronde, &gpt, "block1.x", "block1.x"),
        ] {
            assert_eq!(naming.of(model, ours).unwrap().name, theirs);
        }
        let columns = Naming::HuggingFace.of(&gpt, "block1.attention.key_value.bias");
        assert_eq!(columns.unwrap().columns, Some((4..12, 12)));
        assert_eq!(Naming::Torchvision.of(&gpt, "head.norm.beta"), None);
    }
}
