//! Image files: PNG and JPEG, recognised by their first bytes and not by their names.

use std::io::Cursor;

use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{
    DynamicImage, ExtendedColorType, GrayImage, ImageDecoder, ImageEncoder, ImageFormat,
    ImageReader, RgbImage, RgbaImage,
};

use crate::error::{ImageError, Limits};
use crate::integrity;
use crate::pixels::Pixels;

/// How an image is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// As it was.
    Same,
    /// Without loss.
    Png,
    /// Of a quality from 1 to 100. Alpha is dropped.
    Jpeg(u8),
}

/// The quality of a JPEG that becomes a JPEG again.
const SAME_QUALITY: u8 = 90;

impl Encoding {
    /// What a file of it is called.
    #[must_use]
    pub fn ending(self) -> &'static str {
        match self {
            Self::Same => "",
            Self::Png => "png",
            Self::Jpeg(_) => "jpg",
        }
    }
}

/// Bytes of memory that a decoder may take for each pixel: 16 bits of 4 channels, and as much again to work in.
const BYTES_A_PIXEL: u64 = 16;

/// What a file is by its first bytes; eight suffice.
pub(crate) fn encoding_of(data: &[u8]) -> Result<Encoding, ImageError> {
    match image::guess_format(data) {
        Ok(ImageFormat::Png) => Ok(Encoding::Png),
        Ok(ImageFormat::Jpeg) => Ok(Encoding::Jpeg(SAME_QUALITY)),
        _ => Err(ImageError::Format),
    }
}

/// The pixels of an image, upright, and how it was written.
pub(crate) fn decode(data: &[u8], limits: Limits) -> Result<(Pixels, Encoding), ImageError> {
    let damaged = |error: image::ImageError| ImageError::Damaged(error.to_string());
    let encoding = encoding_of(data)?;
    let format = if encoding == Encoding::Png { ImageFormat::Png } else { ImageFormat::Jpeg };
    // The decoders give grey for what is missing.
    match format {
        ImageFormat::Png => integrity::check_png(data)?,
        _ => integrity::check_jpeg(data, limits)?,
    }
    let mut reader = ImageReader::with_format(Cursor::new(data), format);
    let mut allowed = image::Limits::default();
    // A small image needs tables and buffers too.
    allowed.max_alloc = Some(limits.pixels.saturating_mul(BYTES_A_PIXEL).saturating_add(16 << 20));
    reader.limits(allowed);
    let mut decoder = reader.into_decoder().map_err(damaged)?;
    let (width, height) = decoder.dimensions();
    if width == 0 || height == 0 {
        return Err(ImageError::Damaged("it has no pixels".to_owned()));
    }
    limits.check(width, height)?;
    let orientation = decoder.orientation().map_err(damaged)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(damaged)?;
    // The result says nothing of how it is to be held, so it is turned now.
    image.apply_orientation(orientation);
    Ok((pixels_of(image), encoding))
}

pub(crate) fn encode(pixels: Pixels, encoding: Encoding) -> Result<Vec<u8>, ImageError> {
    let damaged = |error: image::ImageError| ImageError::Damaged(error.to_string());
    let mut written = Vec::new();
    match encoding {
        Encoding::Same | Encoding::Png => {
            let colour = match pixels.channels {
                1 => ExtendedColorType::L8,
                3 => ExtendedColorType::Rgb8,
                _ => ExtendedColorType::Rgba8,
            };
            PngEncoder::new_with_quality(&mut written, CompressionType::Fast, FilterType::Adaptive)
                .write_image(&pixels.data, pixels.width, pixels.height, colour)
                .map_err(damaged)?;
        }
        Encoding::Jpeg(quality) => {
            let encoder = JpegEncoder::new_with_quality(&mut written, quality.clamp(1, 100));
            let image = image_of(pixels)?;
            let opaque = if image.color().has_color() {
                DynamicImage::ImageRgb8(image.into_rgb8())
            } else {
                DynamicImage::ImageLuma8(image.into_luma8())
            };
            opaque.write_with_encoder(encoder).map_err(damaged)?;
        }
    }
    Ok(written)
}

/// Let the library change an image.
pub(crate) fn with_image(
    pixels: Pixels,
    change: impl FnOnce(DynamicImage) -> DynamicImage,
) -> Result<Pixels, ImageError> {
    Ok(pixels_of(change(image_of(pixels)?)))
}

fn image_of(pixels: Pixels) -> Result<DynamicImage, ImageError> {
    let Pixels { width, height, channels, data } = pixels;
    let image = match channels {
        1 => GrayImage::from_raw(width, height, data).map(DynamicImage::ImageLuma8),
        3 => RgbImage::from_raw(width, height, data).map(DynamicImage::ImageRgb8),
        _ => RgbaImage::from_raw(width, height, data).map(DynamicImage::ImageRgba8),
    };
    image.ok_or_else(|| ImageError::Damaged("its pixels are too few".to_owned()))
}

/// 8 bits a channel; grey with alpha becomes colour with alpha.
fn pixels_of(image: DynamicImage) -> Pixels {
    let (width, height) = (image.width(), image.height());
    let colour = image.color();
    let (channels, data) = if colour.has_alpha() {
        (4, image.into_rgba8().into_raw())
    } else if colour.has_color() {
        (3, image.into_rgb8().into_raw())
    } else {
        (1, image.into_luma8().into_raw())
    };
    Pixels { width, height, channels, data }
}
