//! An executor that computes a step by one of two routes, by its number of sequences: the engine notices no difference.

use super::*;

#[test]
fn both_routes_compute_the_same_with_threshold_1_3_and_infinity() {
    let prompts: Vec<Vec<u32>> = (0..6)
        .map(|own| prompt(1, own, 10, 5 + 9 * own as usize))
        .collect();
    let params = GenerateParams {
        stop_tokens: vec![4, 9],
        ..greedy(30)
    };
    for threshold in [1, 3, usize::MAX] {
        let executor = RoutedExecutor::new(&limits(64), &Faults::default(), threshold);
        let n_taken = Arc::clone(&executor.n_taken);
        let engine = Engine::start(executor, EngineConfig::default());
        let outputs = engine.batch_generate(&prompts, &params).unwrap();
        for (prompt, output) in prompts.iter().zip(outputs) {
            assert_eq!(output.unwrap().tokens, expected(prompt, &params));
        }
        let took = n_taken.each_ref().map(|n| n.load(Ordering::Relaxed) > 0);
        assert_eq!(
            took,
            [threshold > 1, threshold < usize::MAX],
            "routes taken at {threshold}"
        );
    }
}

#[test]
fn ragged_prompts_are_prefilled_packed() {
    let engine = engine(64);
    let before = engine.stats().scheduler;
    let prompts = [vec![1; 3], vec![2; 20], vec![3; 9]];
    engine.batch_generate(&prompts, &greedy(1)).unwrap();
    let after = engine.stats().scheduler;
    // Nothing is padded to the longest.
    assert_eq!(after.planned_tokens - before.planned_tokens, 32);
}

#[test]
fn pages_are_back_after_a_step_fails_on_either_route() {
    let faults = Faults {
        waits: vec![20],
        ..Faults::default()
    };
    let engine = Engine::start(
        RoutedExecutor::new(&limits(16), &faults, 2),
        EngineConfig::default(),
    );
    let prompts = [vec![1], vec![2, 3]];
    let outputs = engine.batch_generate(&prompts, &greedy(40)).unwrap();
    // The engine may run the first prompt alone until the second has come.
    assert!(outputs.iter().any(Result::is_err));
    assert_no_page_is_held(&engine);
    assert!(
        engine
            .batch_generate(&prompts, &greedy(40))
            .unwrap()
            .iter()
            .all(Result::is_ok)
    );
}
