//! The points of grids that codes and values are rounded to.

use crate::grid_search::{Grid, Refit, Search, split_even_signs, split_signs};

#[test]
fn a_code_off_the_grid_goes_to_the_best_point_nearby() {
    // The points 0000, 1111 and 7777.
    let grid = Grid::<4>::new(&[0, 0o1111, 0o7777], 7, 2);
    let distance_to_seven = |place: usize, digit: u8| if place == 0 { f32::from(7 - digit) } else { 0.0 };
    assert_eq!(grid.nearest(&[1; 4], distance_to_seven), (1, true));
    // 7777 is at the third distance from here.
    assert_eq!(grid.nearest(&[1, 0, 0, 0], distance_to_seven), (1, false));
    assert_eq!(grid.nearest(&[5, 5, 5, 5], distance_to_seven), (2, false));
    assert_eq!(grid.point(2), &[7; 4]);
}

#[test]
fn values_on_the_grid_are_found_exactly() {
    let grid = Grid::<4>::new(&[0, 0o1234, 0o7777], 7, 2);
    let search = Search {
        step: 0.2,
        n_steps: 9,
        refit: Refit::AllIfOneOff,
    };
    let values = [[4.5, 3.5, 2.5, 1.5], [7.5; 4]];
    let (scale, places) = grid.search(&search, &values, &[[1.0; 4]; 2], 7.5, 1.0);
    assert_eq!((scale, places), (0.5, [1, 2]));
}

#[test]
fn an_odd_number_of_minuses_costs_the_least_value_its_sign() {
    let values = [1.0, -2.0, 3.0, 0.5, 4.0, 5.0, 6.0, 7.0];
    let (magnitudes, signs) = split_even_signs(&values, &[1.0; 8]);
    assert_eq!(magnitudes, [1.0, 2.0, 3.0, -0.5, 4.0, 5.0, 6.0, 7.0]);
    assert_eq!(signs, 0b1010);
    assert_eq!(split_signs(&values).1, 0b10);
}
