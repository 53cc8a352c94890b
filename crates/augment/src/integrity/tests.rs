use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder};
use proptest::prelude::*;

use super::*;
use crate::error::{ImageError, Limits};

const LIMITS: Limits = Limits { pixels: 1 << 20 };
const EOI: [u8; 2] = [0xff, 0xd9];

fn jpeg(width: u32, height: u32, grey: bool) -> Vec<u8> {
    let (channels, colour) =
        if grey { (1, ExtendedColorType::L8) } else { (3, ExtendedColorType::Rgb8) };
    let data: Vec<u8> = (0..width * height * channels).map(|i| (i * i / 7 + i) as u8).collect();
    let mut written = Vec::new();
    JpegEncoder::new_with_quality(&mut written, 80)
        .write_image(&data, width, height, colour)
        .unwrap();
    written
}

fn png() -> Vec<u8> {
    let mut written = Vec::new();
    let data: Vec<u8> = (0..40 * 30 * 3).map(|i| (i * i / 7) as u8).collect();
    image::codecs::png::PngEncoder::new(&mut written)
        .write_image(&data, 40, 30, ExtendedColorType::Rgb8)
        .unwrap();
    written
}

fn words(checked: Result<(), ImageError>) -> String {
    checked.unwrap_err().to_string()
}

#[test]
fn whole_images_are_whole_whatever_follows_them() {
    for (width, height, grey) in [(1, 1, true), (8, 8, false), (17, 3, false), (100, 80, true)] {
        let mut data = jpeg(width, height, grey);
        assert_eq!(check_jpeg(&data, LIMITS), Ok(()), "{width} x {height}");
        data.extend(b"more than an image");
        assert_eq!(check_jpeg(&data, LIMITS), Ok(()));
    }
    let mut data = png();
    assert_eq!(check_png(&data), Ok(()));
    data.extend(b"more than an image");
    assert_eq!(check_png(&data), Ok(()));
}

#[test]
fn every_cut_is_seen() {
    for data in [jpeg(50, 40, false), jpeg(33, 9, true)] {
        for cut in 2..data.len() {
            assert!(check_jpeg(&data[..cut], LIMITS).is_err(), "{cut} of {}", data.len());
        }
    }
    let data = png();
    for cut in 8..data.len() {
        assert!(check_png(&data[..cut]).is_err(), "{cut} of {}", data.len());
    }
}

#[test]
fn image_data_that_ends_early_is_seen_behind_an_end_marker_too() {
    let data = jpeg(50, 40, false);
    let begins = data.windows(2).position(|two| two == [0xff, 0xda]).unwrap() + 14;
    for cut in begins..data.len() - 3 {
        let closed = [&data[..cut], &EOI].concat();
        assert!(check_jpeg(&closed, LIMITS).is_err(), "{cut} of {}", data.len());
    }
    let closed = [&data[..data.len() / 2], &EOI].concat();
    assert!(words(check_jpeg(&closed, LIMITS)).contains("ends early, after"));
}

#[test]
fn every_changed_bit_of_a_png_is_seen() {
    let data = png();
    for bit in 64..8 * data.len() {
        let mut changed = data.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(check_png(&changed).is_err(), "bit {bit}");
    }
}

#[test]
fn the_position_of_damage_is_reported() {
    let data = jpeg(64, 64, false);
    assert!(words(check_jpeg(&data[..data.len() / 2], LIMITS)).starts_with("it is cut off after "));
    let missing = words(check_jpeg(&data[..data.len() - 2], LIMITS));
    assert!(missing.contains("cut off"), "{missing}");
    let mut marked = data.clone();
    let middle = data.len() * 3 / 4;
    marked[middle..middle + 2].copy_from_slice(&[0xff, 0xd3]);
    assert!(words(check_jpeg(&marked, LIMITS)).contains("marker FFD3 should not stand there"));
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..9),
        cut in any::<prop::sample::Index>(),
        which in 0..3,
    ) {
        let mut data = match which { 0 => jpeg(40, 30, false), 1 => jpeg(20, 20, true), _ => png() };
        for (at, value) in changes {
            let at = at.index(data.len());
            data[at] = value;
        }
        data.truncate(cut.index(data.len()) + 1);
        let _ = check_jpeg(&data, LIMITS);
        let _ = check_png(&data);
    }
}
