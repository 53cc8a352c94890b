use proptest::prelude::*;

use super::*;
use crate::random::Random;

const LIMITS: Limits = Limits { pixels: 1 << 16 };

fn picture(width: u32, height: u32, channels: u8) -> Pixels {
    let count = width as usize * height as usize * usize::from(channels);
    let data = (0..count).map(|i| (i * 7 + i / 13) as u8).collect();
    Pixels { width, height, channels, data }
}

fn png(width: u32, height: u32, channels: u8) -> Vec<u8> {
    image_file::encode(picture(width, height, channels), Encoding::Png).unwrap()
}

fn recipe(operations: &[&str], encoding: Encoding) -> Recipe {
    let operations = operations.iter().map(|text| text.parse().unwrap()).collect();
    Recipe { operations, seed: 7, encoding, limits: LIMITS }
}

fn one(operation: &str, pixels: Pixels) -> Pixels {
    let operation: Operation = operation.parse().unwrap();
    operation.apply(pixels, &mut Random::new(1, b"path", 0), LIMITS).unwrap()
}

#[test]
fn nothing_done_to_a_png_gives_its_pixels_again() {
    for channels in [1, 3, 4] {
        let (pixels, encoding) =
            recipe(&[], Encoding::Same).pixels(&png(31, 17, channels), b"a", 0).unwrap();
        assert_eq!((pixels, encoding), (picture(31, 17, channels), Encoding::Png));
    }
}

#[test]
fn a_flip_done_twice_is_none() {
    for (width, height) in [(1, 1), (2, 3), (7, 4)] {
        let before = picture(width, height, 3);
        for operation in ["flip:1", "flip-vertical:1"] {
            let once = one(operation, before.clone());
            assert_eq!(once == before, width == 1 && height == 1, "{operation} {width}x{height}");
            assert_eq!(one(operation, once), before);
        }
    }
}

#[test]
fn a_flip_moves_the_first_pixel_to_the_end() {
    let before = picture(3, 2, 3);
    assert_eq!(one("flip:1", before.clone()).data[6..9], before.data[0..3]);
    assert_eq!(one("flip-vertical:1", before.clone()).data[9..12], before.data[0..3]);
    assert_eq!(one("flip:0", before.clone()), before);
}

#[test]
fn sizes_are_those_asked_for() {
    let size = |pixels: Pixels| (pixels.width, pixels.height, pixels.data.len());
    assert_eq!(size(one("crop:5x3", picture(20, 10, 3))), (5, 3, 45));
    assert_eq!(size(one("crop:50x3", picture(20, 10, 1))), (20, 3, 60));
    assert_eq!(size(one("resize:40x7", picture(20, 10, 4))), (40, 7, 1120));
    assert_eq!(size(one("rotate:90", picture(20, 10, 3))), (20, 10, 600));
}

#[test]
fn a_crop_is_a_piece_of_the_image() {
    let before = picture(20, 10, 1);
    let piece = one("crop:4x1", before.clone());
    assert!(before.data.windows(4).any(|window| window == piece.data));
}

#[test]
fn what_is_not_changed_stays() {
    let before = picture(16, 16, 3);
    for operation in ["rotate:0", "brightness:0", "contrast:0", "color:0", "noise:0"] {
        assert_eq!(one(operation, before.clone()), before, "{operation}");
    }
}

#[test]
fn alpha_is_left_alone_and_grey_has_no_colour() {
    let before = picture(16, 16, 4);
    for operation in ["brightness:1", "contrast:1", "color:1", "noise:50"] {
        let after = one(operation, before.clone());
        assert_ne!(after, before, "{operation}");
        let alpha = |pixels: &Pixels| -> Vec<u8> {
            pixels.data.iter().skip(3).step_by(4).copied().collect()
        };
        assert_eq!(alpha(&after), alpha(&before), "{operation}");
    }
    assert_eq!(one("color:1", picture(8, 8, 1)), picture(8, 8, 1));
}

#[test]
fn noise_has_the_deviation_asked_for() {
    let flat = Pixels { width: 200, height: 200, channels: 1, data: vec![128; 40_000] };
    let after = one("noise:10", flat);
    let mean = after.mean();
    let squares: f32 = after.data.iter().map(|v| (f32::from(*v) - mean).powi(2)).sum();
    let deviation = (squares / 40_000.0).sqrt();
    assert!((mean - 128.0).abs() < 0.5 && (deviation - 10.0).abs() < 0.5, "{mean} {deviation}");
}

#[test]
fn seed_path_and_copy_decide() {
    let recipe = recipe(&["crop:8x8", "flip", "noise:5"], Encoding::Png);
    let image = png(32, 32, 3);
    let made = |seed, path: &[u8], copy| {
        Recipe { seed, ..recipe.clone() }.encoded(&image, path, copy).unwrap().0
    };
    let first = made(1, b"a", 0);
    assert_eq!(made(1, b"a", 0), first);
    for other in [made(2, b"a", 0), made(1, b"b", 0), made(1, b"a", 1)] {
        assert_ne!(other, first);
    }
}

#[test]
fn a_jpeg_stays_one_and_loses_its_alpha() {
    let jpeg = image_file::encode(picture(24, 24, 4), Encoding::Jpeg(95)).unwrap();
    let (pixels, encoding) = recipe(&[], Encoding::Same).pixels(&jpeg, b"a", 0).unwrap();
    assert_eq!((pixels.width, pixels.height, pixels.channels), (24, 24, 3));
    assert_eq!(encoding.ending(), "jpg");
    let (made, _) = recipe(&["flip"], Encoding::Same).encoded(&jpeg, b"a", 0).unwrap();
    assert!(made.starts_with(&[0xFF, 0xD8]));
}

#[test]
fn what_is_too_large_is_not_decoded() {
    let bomb = png(300, 300, 1);
    let refused = recipe(&[], Encoding::Same).pixels(&bomb, b"a", 0);
    assert_eq!(refused.unwrap_err(), ImageError::TooLarge(300, 300));
    let refused = recipe(&["resize:30000x30000"], Encoding::Same).pixels(&png(9, 9, 1), b"a", 0);
    assert_eq!(refused.unwrap_err(), ImageError::TooLarge(30_000, 30_000));
    // A header that promises more than there is, and more than may be.
    let mut header = png(9, 9, 1);
    header[16..24].copy_from_slice(&[0x7F, 0xFF, 0xFF, 0xFF, 0x7F, 0xFF, 0xFF, 0xFF]);
    assert!(recipe(&[], Encoding::Same).pixels(&header, b"a", 0).is_err());
}

#[test]
fn operations_that_are_none_are_refused() {
    for text in [
        "",
        "spin",
        "flip:2",
        "flip:-1",
        "flip:x",
        "rotate",
        "rotate:181",
        "crop:5",
        "crop:0x5",
        "crop:5x99999",
        "resize:-1x4",
        "brightness:NaN",
        "noise:inf",
        "color:",
    ] {
        let found = text.parse::<Operation>();
        assert!(matches!(found, Err(AugmentError::Operation(of)) if of == text), "{text:?}");
    }
}

/// Any operation, as a user may write it.
fn operation() -> impl Strategy<Value = String> {
    prop_oneof![
        (0.0..=1.0_f32).prop_map(|p| format!("flip:{p}")),
        (0.0..=1.0_f32).prop_map(|p| format!("flip-vertical:{p}")),
        (0.0..=180.0_f32).prop_map(|d| format!("rotate:{d}")),
        (1..80_u32, 1..80_u32).prop_map(|(w, h)| format!("crop:{w}x{h}")),
        (1..80_u32, 1..80_u32).prop_map(|(w, h)| format!("resize:{w}x{h}")),
        (0.0..=1.0_f32).prop_map(|f| format!("brightness:{f}")),
        (0.0..=1.0_f32).prop_map(|f| format!("contrast:{f}")),
        (0.0..=1.0_f32).prop_map(|f| format!("color:{f}")),
        (0.0..=255.0_f32).prop_map(|s| format!("noise:{s}")),
    ]
}

/// `make fuzz` wants more than the few that a moment allows.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn any_operations_on_any_image_give_an_image(
        operations in prop::collection::vec(operation(), 0..5),
        (width, height) in (1..50_u32, 1..50_u32),
        channels in prop::sample::select(vec![1_u8, 3, 4]),
        copy in any::<u32>(),
    ) {
        let texts: Vec<&str> = operations.iter().map(String::as_str).collect();
        let (made, _) = recipe(&texts, Encoding::Same).encoded(&png(width, height, channels), b"x", copy).unwrap();
        let (pixels, _) = recipe(&[], Encoding::Same).pixels(&made, b"x", 0).unwrap();
        let expected = pixels.width as usize * pixels.height as usize * usize::from(pixels.channels);
        prop_assert_eq!(pixels.data.len(), expected);
        prop_assert_eq!(pixels.channels, channels);
    }

    #[test]
    fn damaged_images_are_images_or_broken(
        jpeg in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
        whole in any::<bool>(),
    ) {
        let encoding = if jpeg { Encoding::Jpeg(80) } else { Encoding::Png };
        let mut data = image_file::encode(picture(40, 30, 3), encoding).unwrap();
        for (at, byte) in changes {
            let at = at.index(data.len());
            data[at] = byte;
        }
        if !whole {
            data.truncate(cut.index(data.len()));
        }
        if let Ok((pixels, _)) = recipe(&["rotate:9"], Encoding::Same).pixels(&data, b"x", 0) {
            prop_assert!(u64::from(pixels.width) * u64::from(pixels.height) <= LIMITS.pixels);
        }
    }
}
