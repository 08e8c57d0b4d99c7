package boot

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWarnOfUnknown(t *testing.T) {
	var log bytes.Buffer
	ctx := WithLogger(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))
	warnOfUnknown(ctx, []string{"SLUICE_RANK=0", "SLUICE_WAIT=spin", "SLUICE_TEST_LONG=1", "SLUICE_SERVICE_HOST=::1", "PATH=/bin", "COLL_XSIZE=2048", "SLUICE_COLL_BLOCK=64"})
	require.Empty(t, log.String())
	warnOfUnknown(ctx, []string{"SLUICE_SECERT=6b6b", "SLUICE_PROVIDERS=tcp", "COLL_XSIEZ=1", "SLUICE_COLL_BLOKC=1", "SLUICE_COLL_XSIZE=1", "NCCL_COLL_X=1"})
	require.Contains(t, log.String(), `variables="[SLUICE_SECERT SLUICE_PROVIDERS COLL_XSIEZ SLUICE_COLL_BLOKC SLUICE_COLL_XSIZE]"`)
	require.NotContains(t, log.String(), "6b6b")
}
