//! Writes JSON: a few objects and lists are all that is needed.

use std::fmt::{Display, Write as _};

/// A value as its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Json(String);

impl Json {
    pub(crate) fn text(text: &str) -> Self {
        let mut quoted = String::with_capacity(text.len() + 2);
        quoted.push('"');
        for sign in text.chars() {
            match sign {
                '"' => quoted.push_str("\\\""),
                '\\' => quoted.push_str("\\\\"),
                // Writing to a string does not fail.
                sign if sign.is_control() => drop(write!(quoted, "\\u{:04x}", u32::from(sign))),
                sign => quoted.push(sign),
            }
        }
        quoted.push('"');
        Self(quoted)
    }

    /// A number, or `true` or `false`.
    pub(crate) fn plain(value: &impl Display) -> Self {
        Self(value.to_string())
    }

    pub(crate) fn or_null(value: Option<Self>) -> Self {
        value.unwrap_or_else(|| Self("null".to_owned()))
    }

    pub(crate) fn list(values: impl IntoIterator<Item = Self>) -> Self {
        let values: Vec<String> = values.into_iter().map(|value| value.0).collect();
        Self(format!("[{}]", values.join(",")))
    }

    pub(crate) fn object<const N: usize>(fields: [(&str, Self); N]) -> Self {
        let fields = fields.map(|(name, value)| format!("{}:{}", Self::text(name).0, value.0));
        Self(format!("{{{}}}", fields.join(",")))
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_values_put_together() {
        let value = Json::object([
            ("name", Json::text("a\"b\\c\n\u{7f}ö")),
            ("list", Json::list([Json::plain(&1), Json::plain(&true), Json::or_null(None)])),
        ]);
        let text = r#"{"name":"a\"b\\c\u000a\u007fö","list":[1,true,null]}"#;
        assert_eq!(value.into_text(), text);
    }
}
