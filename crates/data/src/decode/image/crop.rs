//! [`CropArea`]: the part of an image that is used.

use ronde_core::philox::Stream;

use super::super::schema::{Crop, ImageFeatures};

/// Attempts to find a random area and aspect ratio that fits.
const TRIES: u64 = 10;
/// The natural logarithm of 4/3.
const LOG_PROPORTION_MAX: f64 = 0.287_682_072_451_780_9;

/// A rectangle in an image, in fractional pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CropArea {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl CropArea {
    pub(super) fn is_all(&self, width: u32, height: u32) -> bool {
        let is_at = self.left == 0.0 && self.top == 0.0;
        is_at && self.width == f64::from(width) && self.height == f64::from(height)
    }
}

/// Returns a number in `[0, 1)`.
fn uniform(word: u32) -> f64 {
    f64::from(word) / (f64::from(u32::MAX) + 1.0)
}

/// Returns the crop of an image of `size` (width, height). Without random words it is the crop for evaluation.
pub(super) fn choose(
    features: &ImageFeatures,
    size: (u32, u32),
    random: Option<&Stream>,
) -> CropArea {
    let (width, height) = (f64::from(size.0), f64::from(size.1));
    let whole = CropArea {
        left: 0.0,
        top: 0.0,
        width,
        height,
    };
    match (features.crop, random) {
        (None, _) if features.resize.is_none() => whole,
        (Some(Crop::RandomResized), Some(random)) => random_resized(features, whole, random),
        (Some(Crop::Random), Some(random)) => {
            let [x, y, ..] = random.block(0);
            cut(features, whole, uniform(x), uniform(y))
        }
        _ => cut(features, whole, 0.5, 0.5),
    }
}

/// Returns a crop with the aspect ratio of the shape, as large as the shape is relative to `resize`. `x` and `y` (0 to 1)
/// define its position.
fn cut(features: &ImageFeatures, whole: CropArea, x: f64, y: f64) -> CropArea {
    let (width, height) = (features.shape[2] as f64, features.shape[1] as f64);
    // PixelSize of the image per pixel of the shape.
    let step = match features.resize {
        Some(resize) => whole.width.min(whole.height) / f64::from(resize),
        None => (whole.width / width).min(whole.height / height),
    };
    let width = (width * step).min(whole.width);
    let height = (height * step).min(whole.height);
    CropArea {
        left: (whole.width - width) * x,
        top: (whole.height - height) * y,
        width,
        height,
    }
}

fn random_resized(features: &ImageFeatures, whole: CropArea, random: &Stream) -> CropArea {
    let [least, most] = features.area.map(f64::from);
    for attempt in 0..TRIES {
        let [area, proportion, x, y] = random.block(attempt).map(uniform);
        let area = whole.width * whole.height * (least + (most - least) * area);
        let proportion = libm::exp(LOG_PROPORTION_MAX * (2.0 * proportion - 1.0));
        let width = (area * proportion).sqrt().round();
        let height = (area / proportion).sqrt().round();
        if (1.0..=whole.width).contains(&width) && (1.0..=whole.height).contains(&height) {
            return CropArea {
                left: ((whole.width - width + 1.0) * x).floor(),
                top: ((whole.height - height + 1.0) * y).floor(),
                width,
                height,
            };
        }
    }
    // The centre, as large as its aspect ratio allows.
    let (width, height) = (
        whole.width.min((whole.height * 4.0 / 3.0).round()),
        whole.height.min((whole.width * 4.0 / 3.0).round()),
    );
    CropArea {
        left: ((whole.width - width) / 2.0).floor(),
        top: ((whole.height - height) / 2.0).floor(),
        width,
        height,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::tests::image_features;
    use ronde_core::seed::{Purpose, SeedTree};

    #[test]
    fn crops_are_inside_the_image_for_any_size() {
        for (crop, resize) in [
            ("random_resized", ""),
            ("random", "resize = 256"),
            ("random", ""),
            ("center", "resize = 300"),
        ] {
            let text = format!("shape = [3, 224, 200]\ncrop = '{crop}'\n{resize}");
            let features = image_features(&text);
            for size in [
                (1, 1),
                (500, 375),
                (1, 4000),
                (4000, 1),
                (224, 200),
                (200, 224),
            ] {
                for sample in 0..200 {
                    let random = SeedTree::new(1).stream(Purpose::Augmentation, &[0, sample]);
                    let part = choose(&features, size, Some(&random));
                    let (width, height) = (f64::from(size.0), f64::from(size.1));
                    assert!(
                        part.left >= 0.0 && part.left + part.width <= width,
                        "{part:?} {size:?}"
                    );
                    assert!(
                        part.top >= 0.0 && part.top + part.height <= height,
                        "{part:?} {size:?}"
                    );
                    assert!(part.width > 0.0 && part.height > 0.0);
                }
            }
        }
    }

    #[test]
    fn areas_and_aspect_ratios_are_as_configured() {
        let features =
            image_features("shape = [3, 8, 8]\ncrop = 'random_resized'\narea = [0.25, 0.75]");
        let (mut sum, mut wide) = (0.0, 0);
        for sample in 0..2000 {
            let random = SeedTree::new(7).stream(Purpose::Augmentation, &[3, sample]);
            let part = choose(&features, (1000, 1000), Some(&random));
            let area = part.width * part.height / 1e6;
            let proportion = part.width / part.height;
            assert!((0.249..=0.751).contains(&area) && (0.748..=1.337).contains(&proportion));
            sum += area;
            wide += u32::from(proportion > 1.0);
        }
        assert!(
            (sum / 2000.0 - 0.5).abs() < 0.02 && (900..1100).contains(&wide),
            "{sum} {wide}"
        );
    }

    #[test]
    fn evaluation_crops_the_centre_and_is_the_same_each_time() {
        let features =
            image_features("shape = [3, 224, 224]\nresize = 256\ncrop = 'random_resized'");
        let part = choose(&features, (512, 768), None);
        assert_eq!(
            (part.width, part.height, part.left, part.top),
            (448.0, 448.0, 32.0, 160.0)
        );
        let stretched = image_features("shape = [3, 224, 224]");
        assert!(choose(&stretched, (512, 768), None).is_all(512, 768));
    }
}
