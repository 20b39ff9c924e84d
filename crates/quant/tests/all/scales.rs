//! The searches for the scale of a group of values.

use crate::scale_search::{nearest_int, search_coordinates, search_positive, search_symmetric, squares};

#[test]
fn nearest_int_rounds_ties_to_even() {
    for (value, expected) in [
        (0.5, 0),
        (1.5, 2),
        (-0.5, 0),
        (-1.5, -2),
        (2.4, 2),
        (-2.6, -3),
        (4e6, 4_000_000),
    ] {
        assert_eq!(nearest_int(value), expected, "{value}");
    }
}

#[test]
fn zeros_get_no_scale() {
    let mut quants = [1; 16];
    assert_eq!(search_symmetric(32, &[0.0; 16], &[1.0; 16], &mut quants), 0.0);
    assert_eq!(quants, [0; 16]);
    assert_eq!(search_coordinates(4, &[1e-16; 16], &mut quants), 0.0);
}

#[test]
fn positive_values_on_a_grid_are_found_exactly() {
    let values: [f32; 16] = std::array::from_fn(|i| 0.25 * i as f32);
    let mut quants = [0; 16];
    assert_eq!(search_positive(15, &values, &[1.0; 16], &mut quants), 0.25);
    assert_eq!(quants, std::array::from_fn(|i| i as u8));
    assert_eq!(search_positive(15, &[0.0; 16], &[1.0; 16], &mut quants), 0.0);
    assert_eq!(quants, [0; 16]);
}

#[test]
fn values_on_a_grid_are_found_exactly() {
    let values: [f32; 16] = std::array::from_fn(|i| 0.25 * (i as f32 - 8.0));
    let mut quants = [0; 16];
    assert_eq!(search_symmetric(8, &values, &squares(&values), &mut quants), 0.25);
    assert_eq!(quants, std::array::from_fn(|i| i as i8));
}
