//! Conversion of encoded images to features: decoding, orientation, crop and resize, flip, normalisation; one plane per channel.
//!
//! Crop and resize are one operation: the crop is a rectangle of the decoded image with fractional pixels, and only this
//! rectangle is resized (triangle filter over all its pixels, as Pillow's `BILINEAR`). Randomness is keyed by epoch and
//! sample.

mod crop;
mod error;
mod jpeg;
mod pixels;
mod turn;

pub use error::ImageError;
use fast_image_resize as fir;
use fast_image_resize::images::{Image, ImageRef};
use pixels::PIXELS_MAX;
pub(super) use pixels::{Channels, PixelSize};
use ronde_core::philox::Stream;

use super::schema::ImageFeatures;
use super::scratch::DecodeScratch;
use crate::error::DataError;

/// The largest side of a model's input, in pixels.
const SIDE_MAX: usize = 1 << 14;
/// The block of random words that decides about flips; the preceding blocks belong to tries for a crop.
const FLIP_BLOCK: u64 = 16;

/// The memory of one thread.
#[derive(Default)]
pub(super) struct ImageBuffers {
    decoded: Vec<u8>,
    turned: Vec<u8>,
    resized: Vec<u8>,
    resizer: fir::Resizer,
}

impl std::fmt::Debug for ImageBuffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageBuffers")
            .field("decoded", &self.decoded.len())
            .field("resized", &self.resized.len())
            .finish_non_exhaustive()
    }
}

/// The conversion of images to features. Several threads may share it, each with its own [`DecodeScratch`].
#[derive(Debug)]
pub struct ImageDecoder {
    features: ImageFeatures,
    channels: Channels,
    width: u32,
    height: u32,
    /// The largest number of pixels of an image.
    pixels_max: u64,
    /// For each channel the factor for a byte, and the summand.
    factors: Vec<(f32, f32)>,
}

impl ImageDecoder {
    /// Creates a decoder.
    ///
    /// # Errors
    /// Returns an error with the key if the settings are invalid.
    pub fn new(features: &ImageFeatures) -> Result<Self, DataError> {
        let shape = &features.shape;
        let &[channels, height, width] = &shape[..] else {
            let problem = format!("invalid shape {shape:?}: expected [channels, height, width]");
            return Err(DataError::schema("features.shape", problem));
        };
        let channels = match channels {
            1 => Channels::Grey,
            3 => Channels::Rgb,
            _ => {
                let problem = format!(
                    "invalid number of channels {channels}: expected 3 (colour) or 1 (grey)"
                );
                return Err(DataError::schema("features.shape", problem));
            }
        };
        if !(1..=SIDE_MAX).contains(&height) || !(1..=SIDE_MAX).contains(&width) {
            let problem =
                format!("invalid shape {shape:?}: sides must have 1 to {SIDE_MAX} pixels");
            return Err(DataError::schema("features.shape", problem));
        }
        if let Some(resize) = features.resize
            && (resize as usize) < height.max(width)
        {
            let problem = format!("{resize} is less than a side of the shape {shape:?}");
            return Err(DataError::schema("features.resize", problem));
        }
        let [least, most] = features.area;
        if !(least > 0.0 && least <= most && most <= 1.0) {
            let problem = format!(
                "invalid range [{least}, {most}]: expected ascending numbers above 0 and at most 1"
            );
            return Err(DataError::schema("features.area", problem));
        }
        Ok(Self {
            factors: factors(features, channels.count())?,
            features: features.clone(),
            pixels_max: PIXELS_MAX,
            channels,
            width: width as u32,
            height: height as u32,
        })
    }

    /// Refuses images of more than `pixels` pixels; by default the limit is 2^26. An image takes at most 12 bytes of memory for
    /// each of its pixels.
    #[must_use]
    pub fn with_pixels_max(mut self, pixels: u64) -> Self {
        self.pixels_max = pixels.min(PIXELS_MAX);
        self
    }

    /// Returns the number of features of an image.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.features.shape.iter().product()
    }

    /// Converts a JPEG, PNG or WebP image as for evaluation: its features have the bits of a record with this image. Cost:
    /// time and memory for its pixels.
    ///
    /// # Errors
    /// Returns the reason why the image cannot be decoded, or if `out` does not have [`ImageDecoder::elements`] elements.
    pub fn decode_for_evaluation(
        &self,
        encoded: &[u8],
        scratch: &mut DecodeScratch,
        out: &mut [f32],
    ) -> Result<(), ImageError> {
        if out.len() != self.elements() {
            let (elements, features) = (out.len(), self.elements());
            return Err(ImageError::Buffer { elements, features });
        }
        self.decode(encoded, None, &mut scratch.image, out)
    }

    pub(super) fn features(&self) -> &ImageFeatures {
        &self.features
    }

    /// Decodes an image. Without random words it is prepared for evaluation.
    pub(super) fn decode(
        &self,
        encoded: &[u8],
        random: Option<&Stream>,
        memory: &mut ImageBuffers,
        out: &mut [f32],
    ) -> Result<(), ImageError> {
        let ImageBuffers {
            decoded, turned, ..
        } = memory;
        let image = PixelSize::decode(encoded, self.channels, self.pixels_max, decoded, turned)?;
        let part = crop::choose(&self.features, (image.width, image.height), random);
        let is_turned =
            self.features.flip && random.is_some_and(|random| random.block(FLIP_BLOCK)[0] & 1 == 1);
        let is_all = part.is_all(image.width, image.height);
        if is_all && (image.width, image.height) == (self.width, self.height) {
            self.normalise(&memory.decoded, is_turned, out);
            return Ok(());
        }
        let bytes = self.width as usize * self.height as usize * self.channels.count();
        memory.resized.resize(bytes, 0);
        let pixels = self.channels.pixel_type();
        let failed = |error: &dyn std::fmt::Display| ImageError::Resize {
            width: image.width,
            height: image.height,
            cause: error.to_string(),
        };
        let from = ImageRef::new(image.width, image.height, &memory.decoded, pixels)
            .map_err(|error| failed(&error))?;
        let mut into = Image::from_slice_u8(self.width, self.height, &mut memory.resized, pixels)
            .map_err(|error| failed(&error))?;
        let options = fir::ResizeOptions::new()
            .resize_alg(fir::ResizeAlg::Convolution(fir::FilterType::Bilinear))
            .crop(part.left, part.top, part.width, part.height);
        let resized = memory.resizer.resize(&from, &mut into, &options);
        resized.map_err(|error| failed(&error))?;
        self.normalise(&memory.resized, is_turned, out);
        Ok(())
    }

    /// Converts interleaved bytes to features, one plane per channel.
    fn normalise(&self, bytes: &[u8], is_turned: bool, out: &mut [f32]) {
        let (row, plane) = (self.width as usize, out.len() / self.channels.count());
        match self.channels {
            Channels::Grey => {
                let (a, b) = self.factors[0];
                for (out, bytes) in out.chunks_mut(row).zip(bytes.chunks(row)) {
                    let each = |(out, &byte): (&mut f32, &u8)| *out = f32::from(byte) * a + b;
                    match is_turned {
                        false => out.iter_mut().zip(bytes).for_each(each),
                        true => out.iter_mut().zip(bytes.iter().rev()).for_each(each),
                    }
                }
            }
            Channels::Rgb => {
                let (bytes, _) = bytes.as_chunks::<3>();
                for (channel, (out, &(a, b))) in
                    out.chunks_mut(plane).zip(&self.factors).enumerate()
                {
                    for (out, pixels) in out.chunks_mut(row).zip(bytes.chunks(row)) {
                        let each = |(out, pixel): (&mut f32, &[u8; 3])| {
                            *out = f32::from(pixel[channel]) * a + b;
                        };
                        match is_turned {
                            false => out.iter_mut().zip(pixels).for_each(each),
                            true => out.iter_mut().zip(pixels.iter().rev()).for_each(each),
                        }
                    }
                }
            }
        }
    }
}

/// Returns `(byte / 255 - mean) / std` as a factor and a summand.
fn factors(features: &ImageFeatures, channels: usize) -> Result<Vec<(f32, f32)>, DataError> {
    let of = |key: &str, given: &Option<Vec<f32>>, default: f32| match given {
        None => Ok(vec![default; channels]),
        Some(values) if values.len() != channels => {
            let problem = format!(
                "expected {channels} numbers, one per channel; found {}",
                values.len()
            );
            Err(DataError::schema(key, problem))
        }
        Some(values) if values.iter().any(|value| !value.is_finite()) => Err(DataError::schema(
            key,
            format!("{values:?} contains a number that is not finite"),
        )),
        Some(values) => Ok(values.clone()),
    };
    let mean = of("features.mean", &features.mean, 0.0)?;
    let std = of("features.std", &features.std, 1.0)?;
    if let Some(zero) = std.iter().find(|value| !value.is_normal()) {
        return Err(DataError::schema(
            "features.std",
            format!("invalid divisor {zero}: expected a finite number other than 0"),
        ));
    }
    let factor = |(mean, std): (&f32, &f32)| (1.0 / (255.0 * std), -mean / std);
    Ok(mean.iter().zip(&std).map(factor).collect())
}

#[cfg(test)]
mod tests;
