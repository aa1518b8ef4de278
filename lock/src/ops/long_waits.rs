//! The long waits in a client's record: encoded into a single field, and decoded.
//!
//! A thread with a long wait adds the wait and the names of the thread's holds. The waits of
//! several clients and the owners on the server are a graph, in which clients find deadlocks.
//! Owners alone would not do: an owner names a client, and not a thread.
//!
//! The field is a list of texts, each after its length, so a name may have any characters:
//! `1:w4:1500..`. A text `w` begins a wait.

use std::fmt::Write as _;
use std::time::Duration;

use crate::model::wait_graph::{LongWait, Need, ThreadHold, WaitId};

/// The maximum length of the field, in bytes.
const LONGEST: usize = 16 * 1024;

/// The maximum length of a written name of a lock or a thread, in bytes. A wait for a lock with a
/// longer name is not listed. Longer names of threads are cut, and holds of locks with longer names
/// are left out.
pub(crate) const LONGEST_NAME: usize = 1024;

/// The maximum number of listed holds of a thread.
const MOST_HOLDS: usize = 16;

/// The begin of a wait, as known to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Began {
    /// This long ago.
    Ago(Duration),
    /// In ms of the server's clock: read from an earlier record, so all records agree.
    At(i64),
}

/// Encodes waits with their begins. Returns the field, and the number of waits with room in the
/// field.
pub(crate) fn encode<'a, I>(waits: I) -> (String, usize)
where
    I: Iterator<Item = (Began, &'a LongWait)>,
{
    let (mut field, mut written) = (String::new(), 0);
    for (began, wait) in waits {
        let need = match wait.need {
            Need::Exclusive => "exclusive",
            Need::Shared => "shared",
            Need::Any => "any",
        };
        let mut one = String::new();
        let number = wait.id.number.to_string();
        let began = match began {
            Began::Ago(age) => age.as_millis().to_string(),
            Began::At(at) => format!("@{at}"),
        };
        let may_fail = if wait.may_fail { "1" } else { "0" };
        let thread = wait.thread.get(..LONGEST_NAME.min(wait.thread.len())).unwrap_or_default();
        let holds = wait.holds.iter().filter(|hold| hold.name.len() <= LONGEST_NAME);
        let holds: Vec<_> = holds.take(MOST_HOLDS).collect();
        let count = holds.len().to_string();
        for text in ["w", &number, &began, may_fail, need, &wait.name, thread, &count] {
            push(&mut one, text);
        }
        for hold in holds {
            push(&mut one, &hold.number.to_string());
            push(&mut one, &hold.name);
        }
        if field.len() + one.len() > LONGEST {
            break;
        }
        field += &one;
        written += 1;
    }
    (field, written)
}

/// Appends a text after its length to the field.
fn push(field: &mut String, text: &str) {
    // Writing to a text never fails.
    write!(field, "{}:{text}", text.len()).ok();
}

/// Decodes a field of [`encode`]. `written` is the time of the record, in ms of the server's clock.
/// The list ends at the first malformed text.
pub(crate) fn decode(client: &str, field: &str, written: i64) -> Vec<LongWait> {
    let mut rest = field;
    std::iter::from_fn(|| decode_one(client, &mut rest, written)).collect()
}

/// Decodes the next wait of `rest`, and moves `rest` behind the wait. `None` at the end or a
/// malformed text.
fn decode_one(client: &str, rest: &mut &str, written: i64) -> Option<LongWait> {
    if next(rest)? != "w" {
        return None;
    }
    let number = next(rest)?.parse().ok()?;
    let began = next(rest)?;
    let since = match began.strip_prefix('@') {
        Some(at) => at.parse().ok()?,
        None => written.saturating_sub(began.parse().ok()?),
    };
    let may_fail = next(rest)? == "1";
    let need = match next(rest)? {
        "exclusive" => Need::Exclusive,
        "shared" => Need::Shared,
        "any" => Need::Any,
        _ => return None,
    };
    let (name, thread) = (next(rest)?.to_owned(), next(rest)?.to_owned());
    let count: usize = next(rest)?.parse().ok()?;
    let mut hold = || {
        let number = next(rest)?.parse().ok()?;
        Some(ThreadHold { number, name: next(rest)?.to_owned() })
    };
    let holds = (0..count.min(MOST_HOLDS)).map(|_| hold()).collect::<Option<_>>()?;
    let id = WaitId { client: client.to_owned(), number };
    Some(LongWait { id, since, may_fail, need, name, thread, holds })
}

/// Returns the next text of `rest`, and moves `rest` behind the text. `None` at the end or a
/// malformed length.
fn next<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let (length, after) = rest.split_once(':')?;
    let (text, after) = after.split_at_checked(length.parse().ok()?)?;
    *rest = after;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(number: u64, name: &str, holds: &[&str]) -> LongWait {
        let hold = |(number, name): (u64, &&str)| ThreadHold { number, name: (*name).to_owned() };
        LongWait {
            id: WaitId { client: "client".to_owned(), number },
            since: 8_500,
            may_fail: number.is_multiple_of(2),
            need: [Need::Exclusive, Need::Shared, Need::Any][usize::try_from(number % 3).unwrap()],
            name: name.to_owned(),
            thread: "worker 7:w".to_owned(),
            holds: (40..).zip(holds).map(hold).collect(),
        }
    }

    const AGE: Began = Began::Ago(Duration::from_millis(1_500));

    #[test]
    fn waits_are_read_as_they_were_written_whatever_is_in_the_names() {
        let waits = [wait(1, "a", &[]), wait(2, "1:w", &["é:\n", ""]), wait(3, "", &["3:a,b"])];
        let (field, _) = encode(waits.iter().map(|wait| (AGE, wait)));
        assert_eq!(decode("client", &field, 10_000), waits);
        assert_eq!(decode("client", "", 10_000), []);
        let (field, _) = encode(waits.iter().map(|wait| (Began::At(8_500), wait)));
        assert_eq!(decode("client", &field, 77), waits);
    }

    #[test]
    fn oversized_waits_are_omitted_and_invalid_input_ends_decoding() {
        let long = "x".repeat(LONGEST_NAME + 1);
        let many: Vec<String> = (0..30).map(|number| number.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let waits = [wait(2, "a", &[&long, "b"]), wait(3, "a", &many)];
        let read = decode("client", &encode(waits.iter().map(|wait| (AGE, wait))).0, 0);
        let holds: Vec<usize> = read.iter().map(|wait| wait.holds.len()).collect();
        assert_eq!(holds, [1, MOST_HOLDS]);

        let wide = wait(1, &"x".repeat(LONGEST_NAME), &[]);
        let (field, written) = encode(std::iter::repeat_n((AGE, &wide), 100));
        assert_eq!((written, decode("client", &field, 0).len()), (15, 15));
        assert!(field.len() <= LONGEST);
        for wrong in ["x", "1:x", "1:w", "1:w1:7", "9:w", "1:w1:x", "\u{1b}:"] {
            assert_eq!(decode("client", wrong, 0), [], "{wrong}");
            let (field, _) = encode([(AGE, &waits[0])].into_iter());
            assert_eq!(decode("client", &(field + wrong), 0).len(), 1);
        }
    }
}
