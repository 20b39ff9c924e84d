//! The promises of the engine to its callers, row by row: each test is named after the promise that it
//! checks. The model below is a test double whose tokens depend on everything that a sequence may look at.

mod an_executor_of_two_routes;
mod batch_generation_on_the_host;
mod constrained_samples;
#[path = "../../library/endless.rs"]
mod endless;
mod operation;
mod recurrent_states;
mod rules_common_to_all;
mod streaming_generation;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokenmill_backend::{ExecutorLimits, SamplingParams, SamplingParamsError, StepError};
use tokenmill_sched::{
    ConstraintFailure, ConstraintSource, Engine, EngineConfig, EngineError, EngineState, Event, FinishReason,
    GenerateParams, MissReason, Output, TokenConstraint,
};
use tokenmill_testkit::fake_executor::{
    FakeExecutor, Faults, RoutedExecutor, limits, prompt, reference, reference_hidden, reference_logits,
    sampled,
};

fn engine(n_pages: usize) -> Engine {
    Engine::start(FakeExecutor::new(limits(n_pages)), EngineConfig::default())
}

fn greedy(max_tokens: usize) -> GenerateParams {
    GenerateParams {
        max_tokens: Some(max_tokens),
        ..GenerateParams::default()
    }
}

fn expected(prompt: &[u32], params: &GenerateParams) -> Vec<u32> {
    let max_tokens = params.max_tokens.expect("tests say how many");
    let (generated, _) = reference(
        &limits(0),
        prompt,
        &params.sampling,
        max_tokens,
        &params.stop_tokens,
    );
    [prompt, &generated].concat()
}

fn generated(output: &Output) -> &[u32] {
    &output.tokens[output.usage.prompt_tokens..]
}

/// Pages come back a moment after the last event.
fn assert_no_page_is_held(engine: &Engine) {
    for _ in 0..200 {
        if engine.stats().n_pages_in_use == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("pages are held: {:?}", engine.stats());
}

/// Lets a step begin once a test says so, and every step once the test has dropped its end.
fn wait_for(gate: &std::sync::mpsc::Receiver<()>) {
    let _ = gate.recv();
}
