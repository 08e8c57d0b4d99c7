package proof

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// What parses is what Append makes, byte for byte.
func FuzzParseHello(f *testing.F) {
	dialer, acceptor := goldenHellos()
	f.Add(dialer.Append(nil))
	f.Add(acceptor.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := parseHello(b)
		if err != nil {
			require.ErrorIs(t, err, refusal(err))
			require.Zero(t, n)
			return
		}
		require.Equal(t, helloSize, n)
		require.True(t, bytes.Equal(b[:n], h.Append(nil)))
	})
}

// refusal is the reason that err should have.
func refusal(err error) error {
	if _, ok := err.(*MismatchError); ok {
		return ErrVersion
	}
	return ErrGarbage
}

// Nothing that a stranger says gets it in, and nothing makes the acceptor read
// or write more than its fixed share.
func FuzzAccept(f *testing.F) {
	dialer, _ := goldenHellos()
	f.Add(dialer.Append(nil))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newScript(b)
		_, err := Accept(s, params("rank 0"), nil)
		require.Error(t, err)
		require.LessOrEqual(t, len(b)-s.say.Len(), helloSize+tagSize)
		require.LessOrEqual(t, s.heard.Len(), helloSize)
	})
}
