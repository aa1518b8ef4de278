//! Harmless display of lock names, which may contain any letters.

use std::io;

use serde::Serialize;
use serde_json::ser::Formatter;

/// Whether a letter moves the cursor of a terminal, changes the direction of the text around, or is
/// invisible. `page.js` has the same letters.
fn is_harmful(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// Escapes the harmful letters of a text, and cuts the text after `most` letters.
pub(crate) fn visible(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for (place, letter) in text.chars().enumerate() {
        if place == most {
            shown.push('…');
            break;
        }
        if is_harmful(letter) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// Serializes a value as JSON of visible ASCII. All other letters of strings are escaped, so that a
/// terminal can show the answer.
pub(crate) fn json(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, Ascii))?;
    Ok(text)
}

/// The formatter of [`json`].
struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut plain = 0;
        for (place, letter) in fragment.char_indices() {
            if letter.is_ascii() && !letter.is_ascii_control() {
                continue;
            }
            writer.write_all(&fragment.as_bytes()[plain..place])?;
            for unit in letter.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            plain = place + letter.len_utf8();
        }
        writer.write_all(&fragment.as_bytes()[plain..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmful_letters_are_escaped_and_long_texts_cut() {
        assert_eq!(visible("a\u{1b}[2J\u{202e}b\u{9b}\n", 80), "a\\u{1b}[2J\\u{202e}b\\u{9b}\\n");
        assert_eq!(visible("שלום ключ", 80), "שלום ключ");
        assert_eq!(visible(&"é".repeat(81), 80), "é".repeat(80) + "…");
    }

    #[test]
    fn json_is_ascii_and_says_the_same() {
        let names = ["plain", "\"\\/<b>", "\u{1b}\u{7f}\u{9b}\u{202e}", "😀é", ""];
        let text = json(&names).unwrap();
        assert!(text.iter().all(|byte| (b' '..=b'~').contains(byte)), "{text:?}");
        assert_eq!(serde_json::from_slice::<Vec<String>>(&text).unwrap(), names);
    }
}
