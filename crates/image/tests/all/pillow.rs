//! Resized images, against Pillow.

use std::fs;

use tokenmill_image::{Filter, ImageLimits, Rgb};
use tokenmill_testkit::{Comparisons, crc32};

#[test]
fn every_byte_is_pillows() {
    let mut comparisons = Comparisons::of("resized images");
    let (Some(cases), Some(picture)) = (
        comparisons.find("vision/resized.json"),
        comparisons.find("vision/gemma3/0.png"),
    ) else {
        return;
    };
    let cases: serde_json::Value = serde_json::from_slice(&fs::read(cases).unwrap()).unwrap();
    let picture = Rgb::decode(&fs::read(picture).unwrap(), &ImageLimits::default()).unwrap();
    for case in cases.as_array().unwrap() {
        let filter = match case["filter"].as_str().unwrap() {
            "bilinear" => Filter::Bilinear,
            _ => Filter::Bicubic,
        };
        let side = |name: &str| case[name].as_u64().unwrap() as usize;
        let resized = picture.resized(side("width"), side("height"), filter);
        for (expected, found) in case["first"].as_array().unwrap().iter().zip(resized.as_bytes()) {
            assert_eq!(expected.as_u64(), Some(u64::from(*found)), "{case}");
        }
        assert_eq!(
            Some(u64::from(crc32(resized.as_bytes()))),
            case["crc32"].as_u64(),
            "{case}"
        );
        comparisons.compared(1);
    }
}
