//! The decoder of a server's replies, on bytes that arrive at once and on the same bytes in pieces.
//!
//! The first byte of an input is the size of a piece, zero for one byte. The rest is what the
//! server sends.
//!
//! # What holds for every input
//!
//! * Nothing panics.
//! * The replies, and the error after the last one, do not depend on how the bytes arrive: at once,
//!   in pieces with a timeout before each, or cut off anywhere.
//! * A reply is nested at most eight deep, has no more parts than it has bytes, and of an error's
//!   text at most about 2 KiB are kept.
//! * Encoded again, the replies are decoded to the same ones.

#![cfg_attr(fuzzing, no_main)]

mod wheellock;

use std::fmt::Write;
use std::io::{ErrorKind, Read};

use wheellock::ops::value::Value;
use wheellock::store::redis::resp::decode::Decoder;
use wheellock::{error, model, ops, store, waits};

#[cfg(not(fuzzing))]
mod replay;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    run(bytes);
});

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    replay::main("reply_decoder", run)
}

/// The longest code and message of a refusal: 1 KiB each, and the length of what was left out.
const MAX_REFUSAL: usize = 2 * (1024 + 40);

/// Decodes an input in several ways, and returns the number of replies.
///
/// # Panics
///
/// If the replies differ, or one is nested too deep or larger than what was sent.
fn run(bytes: &[u8]) -> usize {
    let Some((piece, sent)) = bytes.split_first() else { return 0 };
    let (whole, end) = replies(Pieces::at_once(sent));
    let size = usize::from(*piece).max(1);
    let (in_pieces, same_end) = replies(Pieces { left: sent, piece: size, is_pause: false });
    assert_eq!(whole, in_pieces);
    assert_eq!(end, same_end);
    let parts: usize = whole.iter().map(|reply| count(reply, 0)).sum();
    assert!(parts <= sent.len(), "{parts} parts of {} bytes", sent.len());
    let cut = sent.get(..size).unwrap_or_default();
    assert!(whole.starts_with(&replies(Pieces::at_once(cut)).0), "cut after {size} bytes");
    check_round_trip(&whole);
    whole.len()
}

/// All replies up to the first error or the end, and which of these it was.
fn replies(mut pieces: Pieces<'_>) -> (Vec<Value>, ErrorKind) {
    let (mut decoder, mut replies) = (Decoder::new(), Vec::new());
    loop {
        match decoder.next(&mut pieces) {
            Ok(reply) => {
                replies.push(reply);
                // What was read together with it.
                replies.extend(std::iter::from_fn(|| decoder.buffered()));
            }
            // A timeout: the next read goes on where this one has stopped.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return (replies, error.kind()),
        }
    }
}

/// The parts of a reply, itself included.
fn count(reply: &Value, depth: usize) -> usize {
    assert!(depth <= 8, "nested {depth} deep");
    match reply {
        Value::Array(parts) => 1 + parts.iter().map(|part| count(part, depth + 1)).sum::<usize>(),
        Value::Refusal { code, message } => {
            assert!(code.len() + message.len() <= MAX_REFUSAL);
            1
        }
        Value::Nil | Value::Integer(_) | Value::Text(_) => 1,
    }
}

fn check_round_trip(replies: &[Value]) {
    let mut encoded = String::new();
    for reply in replies {
        encode(reply, &mut encoded);
    }
    // The mark of a refusal that was truncated. Its parts are not told apart by a space any more.
    if !encoded.contains('…') {
        let (again, end) = self::replies(Pieces::at_once(encoded.as_bytes()));
        assert_eq!((&*again, end), (replies, ErrorKind::UnexpectedEof));
    }
}

fn encode(reply: &Value, encoded: &mut String) {
    let written = match reply {
        Value::Nil => write!(encoded, "$-1\r\n"),
        Value::Integer(number) => write!(encoded, ":{number}\r\n"),
        Value::Text(text) => write!(encoded, "${}\r\n{text}\r\n", text.len()),
        Value::Refusal { code, message } if message.is_empty() => write!(encoded, "-{code}\r\n"),
        Value::Refusal { code, message } => write!(encoded, "-{code} {message}\r\n"),
        Value::Array(parts) => {
            let written = write!(encoded, "*{}\r\n", parts.len());
            for part in parts {
                encode(part, encoded);
            }
            written
        }
    };
    assert!(written.is_ok());
}

/// Bytes that arrive in pieces, with a timeout before each but the first.
struct Pieces<'a> {
    left: &'a [u8],
    piece: usize,
    is_pause: bool,
}

impl<'a> Pieces<'a> {
    fn at_once(bytes: &'a [u8]) -> Self {
        Self { left: bytes, piece: bytes.len().max(1), is_pause: false }
    }
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if std::mem::take(&mut self.is_pause) {
            return Err(ErrorKind::WouldBlock.into());
        }
        let length = self.piece.min(buffer.len()).min(self.left.len());
        let (piece, left) = self.left.split_at(length);
        buffer[..length].copy_from_slice(piece);
        self.left = left;
        self.is_pause = !left.is_empty();
        Ok(length)
    }
}
