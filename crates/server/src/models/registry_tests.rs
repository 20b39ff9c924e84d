//! Tests the registry against a plain model of the rules: requests, ends, cancellations, failing loads and
//! times in any order.

use proptest::prelude::*;

use super::*;

type Models = Registry<usize, usize>;
type Waiter = (usize, oneshot::Receiver<Result<usize, ApiError>>);

const SECOND: Duration = Duration::from_secs(1);

fn rules(n_models: usize, pinned: &[usize], keep_alive: KeepAlive) -> Vec<Rules> {
    (0..n_models)
        .map(|idx| Rules {
            name: format!("m{idx}"),
            is_pinned: pinned.contains(&idx),
            keep_alive,
        })
        .collect()
}

/// A registry with a thread that acts at once, and knows the memory of each model.
struct World {
    models: Models,
    sizes: Vec<u64>,
    budget: u64,
    fails: Vec<bool>,
    now: Instant,
    waiters: Vec<Waiter>,
    /// Requests that run, by model.
    running: Vec<usize>,
    answered: Vec<Result<usize, ApiError>>,
    unloaded: Vec<usize>,
}

impl World {
    fn new(sizes: &[u64], budget: u64, pinned: &[usize], keep_alive: KeepAlive) -> Self {
        let now = Instant::now();
        Self {
            models: Registry::new(rules(sizes.len(), pinned, keep_alive), budget, 1000, now),
            fails: vec![false; sizes.len()],
            sizes: sizes.to_vec(),
            budget,
            now,
            waiters: Vec::new(),
            running: Vec::new(),
            answered: Vec::new(),
            unloaded: Vec::new(),
        }
    }

    fn ask(&mut self, idx: usize) {
        match self.models.ask(idx, Purpose::Use(None), self.now) {
            Lookup::Runs(app) => {
                assert_eq!(app, idx);
                self.running.push(idx);
                self.answered.push(Ok(idx));
            }
            Lookup::Waits(receiver) => self.waiters.push((idx, receiver)),
            Lookup::Refused(error) => self.answered.push(Err(error)),
        }
        self.settle();
    }

    fn end(&mut self, place: usize) {
        if self.running.is_empty() {
            return;
        }
        let idx = self.running.remove(place % self.running.len());
        self.models.release(idx, Purpose::Use(None), self.now);
        self.settle();
    }

    fn cancel(&mut self, place: usize) {
        if !self.waiters.is_empty() {
            self.waiters.remove(place % self.waiters.len());
            self.settle();
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.settle();
    }

    fn doing(&self, idx: usize) -> Doing {
        self.models.status(idx, self.now).doing
    }

    fn taken(&self) -> u64 {
        (0..self.sizes.len())
            .map(|idx| self.models.status(idx, self.now).n_bytes)
            .sum()
    }

    fn send(&mut self, answers: Vec<Answer<usize, usize>>) {
        for answer in answers {
            let is_in = answer.reply.is_ok();
            if answer.to.send(answer.reply).is_err() && is_in {
                self.models.release(answer.idx, answer.purpose, self.now);
            }
        }
    }

    /// Does the registry's actions until there are none.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            assert!(self.taken() <= self.budget, "within the budget");
            match self.models.next(self.now) {
                Step::Measure(idx) => {
                    let answers = self.models.measured(idx, Ok(self.sizes[idx]), self.now);
                    self.send(answers);
                }
                Step::Load(idx) => {
                    let loaded = if self.fails[idx] {
                        Err("it fails".to_owned())
                    } else {
                        Ok((idx, self.sizes[idx]))
                    };
                    let answers = self.models.loaded(idx, loaded, self.now);
                    self.send(answers);
                }
                Step::Unload(idx, _) => {
                    assert!(!self.running.contains(&idx), "nothing runs on what is unloaded");
                    self.unloaded.push(idx);
                    self.models.unloaded(idx);
                }
                Step::Answer(answers) | Step::Refuse(_, _, answers) => self.send(answers),
                Step::Wait(_) => return self.collect(),
            }
            self.collect();
        }
        panic!("it never comes to rest");
    }

    fn collect(&mut self) {
        let (running, answered) = (&mut self.running, &mut self.answered);
        self.waiters
            .retain_mut(|(idx, receiver)| match receiver.try_recv() {
                Ok(answer) => {
                    if answer.is_ok() {
                        running.push(*idx);
                    }
                    answered.push(answer);
                    false
                }
                Err(oneshot::error::TryRecvError::Empty) => true,
                Err(oneshot::error::TryRecvError::Closed) => panic!("a waiter is answered"),
            });
    }
}

#[test]
fn the_one_used_longest_ago_makes_room() {
    let mut world = World::new(&[4, 4, 4], 8, &[], KeepAlive::Forever);
    for idx in [0, 1, 0, 2] {
        world.ask(idx);
        world.end(0);
    }
    assert_eq!(world.unloaded, [1]);
    assert_eq!(world.doing(0), Doing::Loaded);
    assert_eq!(world.answered.len(), 4);
}

#[test]
fn requests_end_before_their_model_goes_and_new_ones_wait_once_patience_is_over() {
    let mut world = World::new(&[4, 4], 4, &[], KeepAlive::Forever);
    world.ask(0);
    world.ask(1);
    assert_eq!(world.doing(0), Doing::Loaded);
    // Within the patience the loaded model continues to take requests.
    world.ask(0);
    assert_eq!(world.running, [0, 0]);
    world.pass(PATIENCE);
    world.ask(0);
    assert_eq!((world.running.len(), world.waiters.len()), (2, 2));
    world.end(0);
    world.end(0);
    // The other model had its turn, and the request that waited comes next.
    assert_eq!(world.running, [1]);
    world.pass(PATIENCE);
    world.end(0);
    assert_eq!(world.running, [0]);
    assert_eq!(world.answered.len(), 4);
}

#[test]
fn patience_begins_anew_with_a_model_that_was_just_loaded() {
    let mut world = World::new(&[4, 4], 4, &[], KeepAlive::Forever);
    world.ask(0);
    world.ask(1);
    // The load of the first took longer than anybody's patience.
    world.models.entries[0].loaded_at = world.now + 5 * PATIENCE;
    world.pass(5 * PATIENCE);
    world.ask(0);
    assert_eq!(world.running, [0, 0]);
    world.pass(PATIENCE);
    world.ask(0);
    assert_eq!((world.running.len(), world.waiters.len()), (2, 2));
}

#[test]
fn what_does_not_free_its_memory_keeps_its_bytes_and_stops_no_other() {
    let mut world = World::new(&[4, 4, 4], 8, &[], KeepAlive::Forever);
    for idx in [0, 1] {
        world.ask(idx);
        world.end(0);
    }
    world.models.dismiss(0);
    let Step::Unload(0, _) = world.models.next(world.now) else {
        panic!("it was told to go");
    };
    let error = ApiError::ModelFailed {
        model: "m0".to_owned(),
        reason: "it hangs".to_owned(),
    };
    assert!(world.models.stuck(0, &error, world.now).is_empty());
    // Another goes for the third, and no request waits for the one that hangs.
    world.ask(2);
    assert_eq!((&world.unloaded[..], &world.running[..]), (&[1][..], &[2][..]));
    world.pass(SECOND * 60);
    let refused = world.models.ask(0, Purpose::Use(None), world.now);
    assert!(
        matches!(refused, Lookup::Refused(ApiError::ModelFailed { .. })),
        "{refused:?}"
    );
    world.end(0);
    world.models.unloaded(0);
    world.ask(0);
    assert_eq!(world.running, [0]);
    assert_eq!(world.doing(2), Doing::Loaded);
}

#[test]
fn a_look_wishes_nothing() {
    let mut world = World::new(&[4], 4, &[], KeepAlive::Forever);
    assert_eq!(world.models.look(0, world.now), None);
    world.settle();
    assert_eq!(world.doing(0), Doing::Unloaded);
    world.ask(0);
    assert_eq!(world.models.look(0, world.now), Some(0));
    world.models.release(0, Purpose::Look, world.now);
    world.models.dismiss(0);
    assert_eq!(world.models.look(0, world.now), None);
    world.end(0);
    assert_eq!(world.doing(0), Doing::Unloaded);
}

#[test]
fn a_shutdown_refuses_those_whose_load_has_not_begun() {
    let mut world = World::new(&[4, 4], 4, &[], KeepAlive::Forever);
    world.ask(0);
    world.ask(1);
    let answers = world
        .models
        .refuse_what_waits(&ApiError::NotReady { reason: "the end" });
    assert_eq!(answers.len(), 1);
    world.send(answers);
    world.end(0);
    world.pass(PATIENCE);
    assert_eq!((world.doing(0), world.doing(1)), (Doing::Loaded, Doing::Unloaded));
}

#[test]
fn a_wish_that_is_given_up_moves_nobody() {
    let mut world = World::new(&[4, 4], 4, &[], KeepAlive::Forever);
    world.ask(0);
    world.ask(1);
    world.pass(PATIENCE);
    world.ask(0);
    assert_eq!(world.waiters.len(), 2);
    world.cancel(0);
    assert_eq!(
        world.running,
        [0, 0],
        "what waited for the model that stays runs on"
    );
    world.end(0);
    world.end(0);
    assert_eq!(world.unloaded, Vec::<usize>::new());
}

#[test]
fn an_idle_model_goes_when_its_time_is_over() {
    let mut world = World::new(&[4, 4], 8, &[1], KeepAlive::For(10 * SECOND));
    world.ask(0);
    world.ask(1);
    world.pass(60 * SECOND);
    assert_eq!(world.unloaded, Vec::<usize>::new(), "requests run on it");
    world.end(0);
    world.end(0);
    world.pass(9 * SECOND);
    assert_eq!(world.doing(0), Doing::Loaded);
    world.pass(SECOND);
    assert_eq!((world.doing(0), world.doing(1)), (Doing::Unloaded, Doing::Loaded));
    // A request's own time goes before the model's.
    let Lookup::Waits(_answer) = world
        .models
        .ask(0, Purpose::Use(Some(KeepAlive::For(SECOND))), world.now)
    else {
        panic!("it is not loaded");
    };
    world.settle();
    world.models.release(0, Purpose::Use(None), world.now);
    world.pass(SECOND);
    assert_eq!(world.doing(0), Doing::Unloaded);
}

#[test]
fn a_load_that_fails_is_told_and_tried_again() {
    let mut world = World::new(&[4], 8, &[], KeepAlive::Forever);
    world.fails[0] = true;
    world.ask(0);
    let failed = |answer: &Result<usize, ApiError>| matches!(answer, Err(ApiError::ModelFailed { reason, .. }) if reason == "it fails");
    assert!(failed(&world.answered[0]), "{:?}", world.answered);
    world.fails[0] = false;
    world.ask(0);
    assert!(failed(&world.answered[1]), "the reason is given for a while");
    world.pass(RETRY_PAUSE);
    world.ask(0);
    assert_eq!(world.answered[2], Ok(0));
    assert_eq!(world.models.status(0, world.now).failure, None);
}

#[test]
fn what_failed_with_other_files_is_tried_at_once() {
    let mut world = World::new(&[4], 8, &[], KeepAlive::Forever);
    world.fails[0] = true;
    world.ask(0);
    assert!(world.models.status(0, world.now).failure.is_some());
    world.fails[0] = false;
    world.models.changed(0);
    assert_eq!(world.models.status(0, world.now).failure, None);
    world.ask(0);
    assert_eq!(world.answered[1], Ok(0));
}

#[test]
fn what_never_fits_is_refused_with_the_numbers() {
    let mut world = World::new(&[9, 4, 6], 8, &[1], KeepAlive::Forever);
    world.ask(0);
    world.ask(1);
    world.ask(2);
    for (place, needed, pinned) in [(0, 9, 0), (2, 6, 4)] {
        let Err(ApiError::ModelTooLarge {
            needed_bytes,
            budget_bytes,
            pinned_bytes,
            ..
        }) = &world.answered[place]
        else {
            panic!("{:?}", world.answered);
        };
        assert_eq!((*needed_bytes, *budget_bytes, *pinned_bytes), (needed, 8, pinned));
    }
}

#[test]
fn an_unloaded_model_is_loaded_again_by_the_next_request_only() {
    let mut world = World::new(&[4], 8, &[], KeepAlive::Forever);
    world.ask(0);
    assert!(world.models.dismiss(0));
    world.settle();
    assert_eq!(world.doing(0), Doing::Loaded, "a request runs on it");
    world.ask(0);
    assert_eq!(world.waiters.len(), 1);
    world.end(0);
    assert_eq!(
        (world.unloaded.as_slice(), world.running.as_slice()),
        (&[0][..], &[0][..])
    );
    world.end(0);
    world.models.dismiss(0);
    world.settle();
    assert_eq!(world.doing(0), Doing::Unloaded);
    world.models.order(0, world.now);
    world.settle();
    assert_eq!(world.doing(0), Doing::Loaded);
}

#[test]
fn what_is_preloaded_drives_nobody_out() {
    let mut world = World::new(&[4, 4, 4], 8, &[], KeepAlive::Forever);
    for idx in 0..3 {
        world.models.preload(idx, world.now);
    }
    world.settle();
    assert_eq!(
        [0, 1, 2].map(|idx| world.doing(idx)),
        [Doing::Loaded, Doing::Loaded, Doing::Unloaded]
    );
    assert_eq!(world.unloaded, Vec::<usize>::new());
}

#[test]
fn more_than_may_wait_are_refused() {
    let now = Instant::now();
    let mut models: Models = Registry::new(rules(1, &[], KeepAlive::Forever), 8, 1, now);
    let Lookup::Waits(first) = models.ask(0, Purpose::Use(None), now) else {
        panic!("nothing is loaded")
    };
    assert!(matches!(
        models.ask(0, Purpose::Use(None), now),
        Lookup::Refused(ApiError::QueueFull { waiting: 1, .. })
    ));
    assert!(!models.has_room_to_wait());
    drop(first);
    assert!(
        matches!(models.ask(0, Purpose::Use(None), now), Lookup::Waits(_)),
        "who left makes room"
    );
}

#[derive(Clone, Debug)]
enum Event {
    Ask(usize),
    End(usize),
    Cancel(usize),
    Pass(u64),
    Dismiss(usize),
    Order(usize),
    Fail(usize, bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0usize..4).prop_map(Event::Ask),
        6 => any::<usize>().prop_map(Event::End),
        1 => any::<usize>().prop_map(Event::Cancel),
        3 => (0u64..4000).prop_map(Event::Pass),
        1 => (0usize..4).prop_map(Event::Dismiss),
        1 => (0usize..4).prop_map(Event::Order),
        1 => (0usize..4, any::<bool>()).prop_map(|(idx, fails)| Event::Fail(idx, fails)),
    ]
}

proptest! {
    /// Whatever happens, the budget is kept, nothing runs on what is unloaded, and once the requests that run have ended and time
    /// has passed, everybody was answered.
    #[test]
    fn everybody_is_answered(
        sizes in proptest::collection::vec(1u64..6, 4),
        budget in 3u64..12,
        pinned in proptest::option::of(0usize..4),
        events in proptest::collection::vec(event(), 0..60),
    ) {
        let mut world = World::new(&sizes, budget, pinned.as_slice(), KeepAlive::For(5 * SECOND));
        let (mut n_asked, mut n_cancelled) = (0, 0);
        for event in events {
            match event {
                Event::Ask(idx) => {
                    n_asked += 1;
                    world.ask(idx);
                }
                Event::End(place) => world.end(place),
                Event::Cancel(place) => {
                    n_cancelled += usize::from(!world.waiters.is_empty());
                    world.cancel(place);
                }
                Event::Pass(millis) => world.pass(Duration::from_millis(millis)),
                Event::Dismiss(idx) => {
                    world.models.dismiss(idx);
                    world.settle();
                }
                Event::Order(idx) => {
                    world.models.order(idx, world.now);
                    world.settle();
                }
                Event::Fail(idx, fails) => world.fails[idx] = fails,
            }
        }
        for _ in 0..200 {
            world.pass(PATIENCE);
            world.end(0);
        }
        prop_assert!(world.waiters.is_empty(), "{} wait for ever", world.waiters.len());
        prop_assert_eq!(world.answered.len() + n_cancelled, n_asked);
        prop_assert!(world.running.is_empty());
    }
}
