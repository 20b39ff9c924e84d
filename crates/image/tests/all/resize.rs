//! Resized images whose bytes follow from the filter by hand.

use tokenmill_image::{Filter, Rgb};

fn line(values: &[u8]) -> Rgb {
    let bytes = values.iter().flat_map(|&value| [value; 3]).collect();
    Rgb::new(values.len(), 1, bytes)
}

#[test]
fn a_size_that_it_has_changes_nothing() {
    let image = line(&[1, 7, 200, 3]);
    assert_eq!(image.resized(4, 1, Filter::Bicubic), image);
}

#[test]
fn one_color_stays_at_every_size() {
    let image = Rgb::new(5, 3, vec![77; 45]);
    for (width, height) in [(1, 1), (2, 9), (40, 1), (5, 2)] {
        for filter in [Filter::Bilinear, Filter::Bicubic] {
            let resized = image.resized(width, height, filter);
            assert_eq!((resized.width(), resized.height()), (width, height));
            assert!(
                resized.as_bytes().iter().all(|&byte| byte == 77),
                "{width} x {height}"
            );
        }
    }
}

#[test]
fn halves_are_what_the_triangle_gives() {
    // With two pixels on each side, the nearer ones count three times: (3 * 100 + 3 * 0 + 0) / 7 at the
    // ends.
    let resized = line(&[100, 0, 0, 100]).resized(2, 1, Filter::Bilinear);
    assert_eq!(resized.as_bytes()[0], 43);
    assert_eq!(resized.as_bytes()[0], resized.as_bytes()[3]);
}
