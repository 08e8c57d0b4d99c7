package roce

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Memory that only a QP with a gap needs is not part of every QP: as many QPs as a context may have
// need little memory.
func TestQPSize(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(qp{})*maxQP, uintptr(64<<20), "a QP has %d bytes", unsafe.Sizeof(qp{}))
}
