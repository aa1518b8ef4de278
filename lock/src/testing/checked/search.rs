//! A search through all states of a model, and walks through some.
//!
//! A visited state is kept as 64 bits of a hash. Of n states, two have the same with a probability
//! of n² / 2⁶⁵, and then one of them is not searched: one in 30 million for a million states, one
//! in 4,000 for a hundred million. States that differ only in which client is which are searched
//! once: they have the least of their hashes in common.

use std::collections::{HashSet, VecDeque};
use std::fmt::{self, Write as _};
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// What a machine can search: states, and the steps between them.
pub(crate) trait Model {
    type State: Clone + Hash;
    type Step: Copy;

    fn initial(&self) -> Self::State;

    /// The steps that are possible in a state. Always in the same order.
    fn steps(&self, state: &Self::State, steps: &mut Vec<Self::Step>);

    /// The state after one of them. An error if the step violates a property.
    fn after(&self, state: &Self::State, step: Self::Step) -> Result<Self::State, Violation>;

    /// An error if the state violates a property.
    fn check(&self, state: &Self::State) -> Result<(), Violation>;

    /// How many other states are the same with other names, and the one of that number.
    fn mirrors(&self) -> usize {
        0
    }

    fn mirrored(&self, state: &Self::State, _mirror: usize) -> Self::State {
        state.clone()
    }

    /// A sentence on a step.
    fn describe(
        &self,
        state: &Self::State,
        step: Self::Step,
        after: Option<&Self::State>,
    ) -> String;
}

/// A property that does not hold, as a sentence about what is the case instead.
pub(crate) type Violation = &'static str;

/// A complete search.
#[derive(Debug)]
pub(crate) struct Searched {
    pub(crate) states: usize,
    /// The most steps that led to one.
    pub(crate) depth: usize,
    /// Whether there are no others.
    pub(crate) is_complete: bool,
}

impl fmt::Display for Searched {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, depth, is_complete } = self;
        let whole = if *is_complete { "all" } else { "the first" };
        write!(formatter, "{whole} {states} states, up to {depth} steps away")
    }
}

/// Which of the states that wait is searched next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The first: then a violation has a shortest trace.
    Breadth,
    /// The last: then few states wait at a time.
    Depth,
}

/// Says what a run has searched.
#[expect(clippy::print_stdout, reason = "the figures are part of what a run finds")]
pub(crate) fn report(line: fmt::Arguments<'_>) {
    println!("{line}");
}

/// The steps to a violation, numbered, one in a line.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) steps: usize,
    pub(crate) violation: Violation,
    pub(crate) text: String,
}

/// Searches all states, or the first `limit`. An error is a way to a violation.
pub(crate) fn search<M: Model>(model: &M, order: Order, limit: usize) -> Result<Searched, Trace> {
    let initial = model.initial();
    let mut visited = HashSet::<u64, BuildHasherDefault<Mixed>>::default();
    visited.insert(fingerprint(model, &initial));
    // How each state was reached: from which, by which of its steps.
    let mut reached: Vec<(u32, u8)> = vec![(0, 0)];
    let mut unsearched = VecDeque::from([(0_u32, 0_usize, initial)]);
    let (mut steps, mut depth) = (Vec::new(), 0);
    while let Some((number, distance, state)) = match order {
        Order::Breadth => unsearched.pop_front(),
        Order::Depth => unsearched.pop_back(),
    } {
        depth = depth.max(distance);
        steps.clear();
        model.steps(&state, &mut steps);
        for (index, step) in (0..).zip(&steps) {
            let violated = || trace(model, way_to(&reached, number, index));
            let after = model.after(&state, *step).map_err(|_| violated())?;
            if !visited.insert(fingerprint(model, &after)) {
                continue;
            }
            model.check(&after).map_err(|_| violated())?;
            if reached.len() == limit {
                return Ok(Searched { states: limit, depth, is_complete: false });
            }
            let next = u32::try_from(reached.len()).unwrap();
            reached.push((number, index));
            unsearched.push_back((next, distance + 1, after));
        }
    }
    Ok(Searched { states: reached.len(), depth, is_complete: true })
}

/// The indices of the steps that lead to a state, and of one more.
fn way_to(reached: &[(u32, u8)], mut number: u32, last: u8) -> Vec<usize> {
    let mut way = vec![usize::from(last)];
    while number != 0 {
        let (before, index) = reached[usize::try_from(number).unwrap()];
        way.push(usize::from(index));
        number = before;
    }
    way.reverse();
    way
}

/// A walk of at most `length` steps, each drawn from those that are possible. Returns how many it
/// took.
pub(crate) fn walk<M: Model>(model: &M, seed: u64, length: usize) -> Result<usize, Trace> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut state = model.initial();
    let (mut steps, mut way) = (Vec::new(), Vec::new());
    for taken in 0..length {
        steps.clear();
        model.steps(&state, &mut steps);
        if steps.is_empty() {
            return Ok(taken);
        }
        let index = random.usize(..steps.len());
        way.push(index);
        match model.after(&state, steps[index]) {
            Ok(after) if model.check(&after).is_ok() => state = after,
            _ => return Err(trace(model, way)),
        }
    }
    Ok(length)
}

fn trace<M: Model>(model: &M, way: Vec<usize>) -> Trace {
    let (mut state, mut text, steps) = (model.initial(), String::new(), way.len());
    for (number, index) in (1..).zip(way) {
        let mut possible = Vec::new();
        model.steps(&state, &mut possible);
        let step = possible[index];
        let after = model.after(&state, step);
        let sentence = model.describe(&state, step, after.as_ref().ok());
        writeln!(text, "{number:2}. {sentence}").unwrap();
        match after.and_then(|after| model.check(&after).map(|()| after)) {
            Ok(after) => state = after,
            Err(violation) => {
                writeln!(text, "    => {violation}").unwrap();
                return Trace { steps, violation, text };
            }
        }
    }
    unreachable!("the last step violates a property");
}

/// The fingerprint of a state, which all its mirrors share.
pub(crate) fn fingerprint<M: Model>(model: &M, state: &M::State) -> u64 {
    let mirrors = (0..model.mirrors()).map(|mirror| hash(&model.mirrored(state, mirror)));
    mirrors.fold(hash(state), u64::min)
}

fn hash(state: &impl Hash) -> u64 {
    let mut hasher = Mixed::default();
    state.hash(&mut hasher);
    // Of the last words, too, every bit is to count in every bit.
    let mixed = (hasher.0 ^ (hasher.0 >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

/// A hash that is the same in every run, and quick.
#[derive(Default)]
pub(crate) struct Mixed(u64);

impl Mixed {
    fn mix(&mut self, word: u64) {
        let mixed = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }
}

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.mix(u64::from_le_bytes(word));
        }
        self.mix(bytes.len() as u64);
    }

    fn write_u8(&mut self, word: u8) {
        self.mix(word.into());
    }

    fn write_u16(&mut self, word: u16) {
        self.mix(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.mix(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_i64(&mut self, word: i64) {
        self.mix(word.cast_unsigned());
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.mix(word.cast_unsigned() as u64);
    }
}
