//! The operations: their syntax and their effect.

use std::str::FromStr;

use image::imageops::FilterType;

use crate::error::{AugmentError, ImageError, Limits};
use crate::image_file;
use crate::pixels::Pixels;
use crate::random::Random;

/// One operation. What it does to an image is drawn anew for each copy of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    /// `flip`, `flip:P`: left to right, with a probability of P.
    Flip(f32),
    /// `flip-vertical`, `flip-vertical:P`: top to bottom.
    FlipVertical(f32),
    /// `rotate:D`: by up to D degrees either way.
    Rotate(f32),
    /// `crop:WxH`: a piece of that size, from anywhere; of a smaller image what there is.
    Crop(u32, u32),
    /// `resize:WxH`: to that size, whatever its shape was.
    Resize(u32, u32),
    /// `brightness:F`: by up to the share F of full white either way.
    Brightness(f32),
    /// `contrast:F`: distances from the mean times 1 - F to 1 + F.
    Contrast(f32),
    /// `color:F`: distances from grey times 1 - F to 1 + F.
    Color(f32),
    /// `noise:S`: normal noise of deviation S, of 255.
    Noise(f32),
}

/// The longest edge that can be asked for.
const LONGEST_EDGE: u32 = 1 << 15;

impl FromStr for Operation {
    type Err = AugmentError;

    fn from_str(text: &str) -> Result<Self, AugmentError> {
        let unknown = || AugmentError::Operation(text.to_owned());
        let (name, argument) = match text.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        let number = |most: f32| {
            let value: f32 = argument.and_then(|text| text.parse().ok()).ok_or_else(unknown)?;
            if (0.0..=most).contains(&value) {
                Ok(value)
            } else {
                Err(unknown())
            }
        };
        let probability = || if argument.is_none() { Ok(0.5) } else { number(1.0) };
        let size = || {
            let (width, height) =
                argument.and_then(|text| text.split_once('x')).ok_or_else(unknown)?;
            let edge = |text: &str| {
                let edge = text.parse().ok().filter(|edge| (1..=LONGEST_EDGE).contains(edge));
                edge.ok_or_else(unknown)
            };
            Ok((edge(width)?, edge(height)?))
        };
        match name {
            "flip" => probability().map(Self::Flip),
            "flip-vertical" => probability().map(Self::FlipVertical),
            "rotate" => number(180.0).map(Self::Rotate),
            "crop" => size().map(|(width, height)| Self::Crop(width, height)),
            "resize" => size().map(|(width, height)| Self::Resize(width, height)),
            "brightness" => number(1.0).map(Self::Brightness),
            "contrast" => number(1.0).map(Self::Contrast),
            "color" => number(1.0).map(Self::Color),
            "noise" => number(255.0).map(Self::Noise),
            _ => Err(unknown()),
        }
    }
}

impl Operation {
    pub(crate) fn apply(
        self,
        pixels: Pixels,
        random: &mut Random,
        limits: Limits,
    ) -> Result<Pixels, ImageError> {
        Ok(match self {
            Self::Flip(probability) => {
                if random.unit() < probability {
                    pixels.mirrored()
                } else {
                    pixels
                }
            }
            Self::FlipVertical(probability) => {
                if random.unit() < probability {
                    pixels.upended()
                } else {
                    pixels
                }
            }
            Self::Rotate(most) => pixels.turned(random.around_zero(most)),
            Self::Crop(width, height) => {
                let (width, height) = (width.min(pixels.width), height.min(pixels.height));
                let left = random.up_to(pixels.width - width);
                let top = random.up_to(pixels.height - height);
                pixels.cut(left, top, width, height)
            }
            Self::Resize(width, height) => {
                limits.check(width, height)?;
                image_file::with_image(pixels, |image| {
                    image.resize_exact(width, height, FilterType::Triangle)
                })?
            }
            Self::Brightness(most) => {
                let more = 255.0 * random.around_zero(most);
                pixels.mapped(|value| value + more)
            }
            Self::Contrast(most) => {
                let factor = 1.0 + random.around_zero(most);
                let mean = pixels.mean();
                pixels.mapped(|value| mean + factor * (value - mean))
            }
            Self::Color(most) => pixels.coloured(1.0 + random.around_zero(most)),
            Self::Noise(deviation) => pixels.disturbed(|| deviation * random.normal()),
        })
    }
}
